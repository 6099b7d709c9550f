"""The harness measures: suites become cells, cells become processes, processes become records and reports."""
