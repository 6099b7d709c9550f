"""What strategies share between ranks: communication with its ledger, ownership, regions, exchange, migration."""
