// A warp's own supply of staged records: what of a tile's list reaches its two cells, brought in banks of BANK records
// while earlier ones are rendered, and a list for each half. Warps wait for no other, and a half that has more to do
// than the other goes on with it while new banks come: what is left over is rendered together with them.
#pragma once

#include "compositing.cuh"

template <int BANK, int BANKS>
struct Supply {
    static_assert(BANK <= WARP && BANKS >= 3, "a lane brings a record; one bank comes while others are rendered");
    static constexpr int SLOTS = BANK * BANKS;
    static constexpr int FOUND = 2 * WARP;  // a ring
    static constexpr int LIST = 4 * WARP;   // a ring, of a half's entries and of what pads them
    static_assert(SLOTS + SLOTS / 2 <= LIST && (LIST & (LIST - 1)) == 0, "a half has at most an entry for each record");

    float4 records[(SLOTS + 1) * 3];  // as in Batch; the last is of no splat
    uint2 found[FOUND];               // splat, and 4 times its number among the list's entries plus its halves as bits
    alignas(8) uint16_t lists[2][LIST];
};

// What a warp knows of its supply; the same in all lanes.
template <int BANK, int BANKS>
class Intake {
    using Own = Supply<BANK, BANKS>;
    struct Ends {
        int left, right;
    };

    Own& own;
    int found_first = 0, found = 0, bank = 0;
    int coming = 0;             // records on their way
    int taken = 0;              // entries that each half rendered, those of no splat among them
    Ends end = {0, 0};          // entries listed
    Ends ends[BANKS - 1] = {};  // the same after each of the last banks that arrived

public:
    __device__ explicit Intake(Own& own) : own(own) {
        if (lane_index() < 3) own.records[Own::SLOTS * 3 + lane_index()] = make_float4(0.f, 0.f, 0.f, 0.f);
        __syncwarp();
    }

    __device__ bool wants() const { return found < BANK; }
    __device__ bool has_found() const { return found > 0; }
    __device__ unsigned entries_taken() const { return taken; }  // by either half

    // Each lane looks at an entry, in order; halves: bit 0 and 1, by which halves it is seen.
    __device__ void find(unsigned halves, int splat, int number) {
        unsigned hits = __ballot_sync(ALL_LANES, halves != 0u);
        if (halves != 0u) {
            int at = found_first + found + __popc(hits & ((1u << lane_index()) - 1u));
            own.found[at & (Own::FOUND - 1)] = make_uint2(splat, static_cast<unsigned>(number) << 2 | halves);
        }
        found += __popc(hits);
    }

    // Start bringing a bank of what was found.
    __device__ void request_bank(const float4* records) {
        __syncwarp();
        coming = min(found, BANK);
        if (lane_index() < coming) {
            int splat = static_cast<int>(own.found[(found_first + lane_index()) & (Own::FOUND - 1)].x);
            request(own.records + (bank * BANK + lane_index()) * 3, records, splat);
        }
        found_first = (found_first + coming) & (Own::FOUND - 1);
        found -= coming;
    }

    // How many groups of LISTED entries the halves should render now, side by side: what both have, but at least what
    // keeps the next bank from coming, and in the end everything. Halves that have less get entries of no splat.
    __device__ int groups(bool all) {
        Ends due = all ? end : ends[BANKS - 2];
        int both = (min(end.left, end.right) - taken) / LISTED;
        int must = (max(due.left, due.right) - taken + LISTED - 1) / LISTED;
        int count = max(both, must), until = taken + count * LISTED;
#pragma unroll 1
        for (int i = (half_index() ? end.right : end.left) + lane_of_half(); i < until; i += HALF) {
            own.lists[half_index()][i & (Own::LIST - 1)] =
                static_cast<uint16_t>(shared_address(own.records + Own::SLOTS * 3));
        }
        end = {max(end.left, until), max(end.right, until)};
        __syncwarp();
        return count;
    }

    // The addresses of this half's next group.
    __device__ Group next_group() {
        Group group(own.lists[half_index()] + (taken & (Own::LIST - 1)));
        taken += LISTED;
        return group;
    }

    // Stage the bank that was requested, and list it. NAMED: with the number of the splat in place of its depth.
    template <bool NAMED>
    __device__ void receive_bank(const View& view) {
        wait_for_requests();
        float4* record = own.records + (bank * BANK + lane_index()) * 3;
        unsigned halves = 0u;
        if (lane_index() < coming) {
            uint2 entry = own.found[(found_first - coming + lane_index()) & (Own::FOUND - 1)];
            float2 rest = *reinterpret_cast<const float2*>(record + 1);
            stage(record, record[0], rest.x, furthest_sigma(view, rest.y), static_cast<int>(entry.y >> 2));
            if (NAMED) record[2].y = __uint_as_float(entry.x);
            halves = entry.y & 3u;
        }
        unsigned left = __ballot_sync(ALL_LANES, halves & 1u), right = __ballot_sync(ALL_LANES, halves & 2u);
        unsigned before = (1u << lane_index()) - 1u;
        uint16_t address = static_cast<uint16_t>(shared_address(record));
        if (halves & 1u) own.lists[0][(end.left + __popc(left & before)) & (Own::LIST - 1)] = address;
        if (halves & 2u) own.lists[1][(end.right + __popc(right & before)) & (Own::LIST - 1)] = address;
        end.left += __popc(left);
        end.right += __popc(right);
#pragma unroll
        for (int i = BANKS - 2; i > 0; --i) ends[i] = ends[i - 1];
        ends[0] = end;
        bank = bank + 1 < BANKS ? bank + 1 : 0;
        __syncwarp();
    }
};
