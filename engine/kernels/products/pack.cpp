// Packs the weights of a file: formats as ggml's quantisation defines them.
#include "products.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int SUPER_K = 256;  // inputs of a superblock of the K formats

// One block of one output: its codes (unsigned, but Q8_0), and what it is scaled by.
struct Codes {
    uint8_t code[BLOCK_K];
    uint16_t scale, min;             // F16
    uint8_t block_scale[2], block_min;  // of the K formats, where scale and min are those of the superblock
};

uint16_t half(const uint8_t * at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
}

// Of 32 weights: the lower halves of 16 bytes, then their upper ones.
void nibbles(const uint8_t * from, Codes & to) {
    for (int i = 0; i < 16; i++) to.code[i] = from[i] & 15, to.code[16 + i] = from[i] >> 4;
}

void fifth_bits(const uint8_t * from, Codes & to) {
    uint32_t bits;
    std::memcpy(&bits, from, sizeof bits);
    for (int i = 0; i < BLOCK_K; i++) to.code[i] |= (bits >> i & 1) << 4;
}

// Scales and minima of Q4_K and Q5_K: 8 of each in 6 bits.
void six_bit_scales(const uint8_t * packed, int block, Codes & to) {
    if (block < 4) {
        to.block_scale[0] = packed[block] & 63;
        to.block_min = packed[block + 4] & 63;
    } else {
        to.block_scale[0] = (packed[block + 4] & 15) | (packed[block - 4] >> 6 << 4);
        to.block_min = (packed[block + 4] >> 4) | (packed[block] >> 6 << 4);
    }
    to.block_scale[1] = to.block_scale[0];
}

int64_t row_bytes(WeightType type, int64_t inputs) {
    switch (type) {
        case WeightType::Q4_0: return inputs / 32 * 18;
        case WeightType::Q4_1: return inputs / 32 * 20;
        case WeightType::Q5_0: return inputs / 32 * 22;
        case WeightType::Q5_1: return inputs / 32 * 24;
        case WeightType::Q8_0: return inputs / 32 * 34;
        case WeightType::Q4_K: return inputs / 256 * 144;
        case WeightType::Q5_K: return inputs / 256 * 176;
        case WeightType::Q6_K: return inputs / 256 * 210;
    }
    return 0;
}

// The codes of block n of a row that begins at `row`.
Codes codes_of(WeightType type, const uint8_t * row, int64_t n) {
    Codes to{};
    const int64_t super = n / (SUPER_K / BLOCK_K), block = n % (SUPER_K / BLOCK_K);
    switch (type) {
        case WeightType::Q4_0:
        case WeightType::Q4_1:
        case WeightType::Q5_0:
        case WeightType::Q5_1: {
            const bool has_min = type == WeightType::Q4_1 || type == WeightType::Q5_1;
            const bool five = type == WeightType::Q5_0 || type == WeightType::Q5_1;
            const uint8_t * at = row + row_bytes(type, n * BLOCK_K);
            to.scale = half(at);
            if (has_min) to.min = half(at + 2);
            at += has_min ? 4 : 2;
            nibbles(at + (five ? 4 : 0), to);
            if (five) fifth_bits(at, to);
            break;
        }
        case WeightType::Q8_0: {
            const uint8_t * at = row + n * 34;
            to.scale = half(at);
            std::memcpy(to.code, at + 2, BLOCK_K);
            break;
        }
        case WeightType::Q4_K:
        case WeightType::Q5_K: {
            const bool five = type == WeightType::Q5_K;
            const uint8_t * at = row + super * (five ? 176 : 144);
            to.scale = half(at), to.min = half(at + 2);
            six_bit_scales(at + 4, block, to);
            const uint8_t * low = at + (five ? 48 : 16) + block / 2 * 32;
            for (int i = 0; i < BLOCK_K; i++) {
                to.code[i] = block % 2 ? low[i] >> 4 : low[i] & 15;
                if (five) to.code[i] |= (at[16 + i] >> block & 1) << 4;
            }
            break;
        }
        case WeightType::Q6_K: {
            const uint8_t * at = row + super * 210;
            const uint8_t * low = at + block / 4 * 64 + block % 2 * 32;
            const uint8_t * high = at + 128 + block / 4 * 32;
            to.scale = half(at + 208);
            to.block_scale[0] = at[192 + 2 * block], to.block_scale[1] = at[193 + 2 * block];
            for (int i = 0; i < BLOCK_K; i++)
                to.code[i] = (block % 4 < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * (block % 4)) & 3) << 4;
            break;
        }
    }
    return to;
}

void set_half(uint8_t * to, int output, uint16_t bits) { std::memcpy(to + 2 * output, &bits, sizeof bits); }

void put(WeightType type, const Layout & layout, const Codes & from, int output, uint8_t * head, uint8_t * block) {
    uint8_t * const scales = layout.blocks > 1 ? head : block;
    set_half(scales, output, from.scale);
    if ((layout.blocks > 1 ? layout.head_bytes : layout.scale_bytes) == 4 * OUTPUTS) set_half(scales + 2 * OUTPUTS, output, from.min);
    if (layout.blocks > 1) {
        block[output] = from.block_scale[0];
        block[OUTPUTS + output] = type == WeightType::Q6_K ? from.block_scale[1] : from.block_min;
    }
    uint8_t * const low = block + layout.scale_bytes, * const high = low + layout.low_bytes;
    for (int k = 0; k < BLOCK_K; k++) {
        const int group = k / GROUP, byte = output * GROUP + k % GROUP, code = from.code[k];
        if (layout.low_bytes == BLOCK_K * OUTPUTS) {
            low[group * GROUP_BYTES + byte] = code;
            continue;
        }
        low[group / 2 * GROUP_BYTES + byte] |= (code & 15) << (group % 2 * 4);
        if (layout.high_bytes == 64) high[group * 8 + byte / 8] |= (code >> 4) << (byte % 8);
        if (layout.high_bytes == 128) high[group / 4 * GROUP_BYTES + byte] |= (code >> 4) << (group % 4 * 2);
    }
}

}  // namespace

void pack(WeightType type, int64_t inputs, int64_t outputs, const void * from, void * to) {
    const Layout layout = layout_of(type);
    const int64_t count = panels(outputs), bytes = panel_bytes(type, inputs);
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t panel; (panel = next++) < count;) {
            uint8_t * const at = static_cast<uint8_t *>(to) + panel * bytes;
            std::memset(at, 0, bytes);  // the outputs beyond the last
            for (int output = 0; output < std::min<int64_t>(OUTPUTS, outputs - panel * OUTPUTS); output++) {
                const uint8_t * const row = static_cast<const uint8_t *>(from) + (panel * OUTPUTS + output) * row_bytes(type, inputs);
                for (int64_t n = 0; n < inputs / BLOCK_K; n++) {
                    uint8_t * const head = at + n / layout.blocks * layout.super_bytes();
                    put(type, layout, codes_of(type, row, n), output, head, head + layout.head_bytes + n % layout.blocks * layout.block_bytes());
                }
            }
        }
    };
    // Not by OpenMP, which keeps a team for each thread that ever asked for one: with more threads than cores it
    // puts those that wait for a moment to sleep, and each step takes twice as long.
    std::vector<std::thread> others(std::max(1u, std::thread::hardware_concurrency()) - 1);
    for (std::thread & other : others) other = std::thread(work);
    work();
    for (std::thread & other : others) other.join();
}
