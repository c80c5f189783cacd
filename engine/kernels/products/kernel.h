// The kernel, for any instruction set that a Simd type describes (avx512.cpp has an example).
//
// Activations are rounded to bytes, with a scale for each 32 of a row. Products of bytes are added up exactly within
// a block, and blocks in their order: no result depends on the other rows, or on the number of threads.
#pragma once

#include "../simd/number.h"
#include "products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int CHUNK_ROWS = 128;    // whose activations stay in the cache of a core
constexpr int AHEAD = 4096;        // bytes of weights, which are on their way while others are computed with
constexpr float SMALLEST = 1e-30f; // smaller activations are zero

// How a type's codes are read, and what they mean: weight = scale * (code + OFFSET) + min.
template <WeightType TYPE> struct Meaning {
    static constexpr Layout LAYOUT = layout_of(TYPE);
    static constexpr bool SUPER = LAYOUT.blocks > 1;
    static constexpr bool HAS_MIN = (SUPER ? LAYOUT.head_bytes : LAYOUT.scale_bytes) == 4 * OUTPUTS;
    static constexpr bool TWO_SCALES = TYPE == WeightType::Q6_K;  // one for each half of a block
    static constexpr bool BYTES = TYPE == WeightType::Q8_0;       // codes are signed
    static constexpr int OFFSET = TYPE == WeightType::Q4_0 ? -8 : TYPE == WeightType::Q5_0 ? -16 : TYPE == WeightType::Q6_K ? -32 : 0;
};

// Codes of groups 2 pair and 2 pair + 1, of the outputs from `first` on.
template <class Simd, WeightType TYPE>
void codes(const uint8_t * low, int pair, int first, typename Simd::Ints & a, typename Simd::Ints & b) {
    constexpr Layout layout = Meaning<TYPE>::LAYOUT;
    const int byte = first * GROUP;
    if constexpr (Meaning<TYPE>::BYTES) {
        a = Simd::bytes(low + 2 * pair * GROUP_BYTES + byte);
        b = Simd::bytes(low + (2 * pair + 1) * GROUP_BYTES + byte);
    } else {
        const auto both = Simd::bytes(low + pair * GROUP_BYTES + byte);
        a = Simd::low_nibbles(both);
        b = Simd::high_nibbles(both);
        const uint8_t * high = low + layout.low_bytes;
        if constexpr (layout.high_bytes == 64) {
            a = Simd::plus_16_where(a, high + 16 * pair + byte / 8);
            b = Simd::plus_16_where(b, high + 16 * pair + 8 + byte / 8);
        }
        if constexpr (layout.high_bytes == 128) {
            const auto bits = Simd::bytes(high + pair / 2 * GROUP_BYTES + byte);
            a = pair % 2 ? Simd::either(a, Simd::bits_4_and_5(bits)) : Simd::either(a, Simd::bits_4_and_5(Simd::times_16(bits)));
            b = pair % 2 ? Simd::either(b, Simd::bits_4_and_5(Simd::quarter(bits))) : Simd::either(b, Simd::bits_4_and_5(Simd::times_4(bits)));
        }
    }
}

template <class Simd, WeightType TYPE>
typename Simd::Ints add_products(typename Simd::Ints sum, typename Simd::Ints codes, const int8_t * with) {
    if constexpr (Meaning<TYPE>::BYTES) return Simd::add_signed_products(sum, codes, with);
    else return Simd::add_products(sum, codes, with);
}

// ROWS rows by the outputs of a panel from `first` on, as many as a vector holds. to: [ROWS][stride], of the panel.
template <class Simd, WeightType TYPE, int ROWS>
void multiply_rows(const Product & p, const Activations & activations, int64_t row, const uint8_t * panel, int first, float * to, int64_t stride) {
    using M = Meaning<TYPE>;
    using Floats = typename Simd::Floats;
    using Ints = typename Simd::Ints;
    constexpr int OFFSET = M::BYTES ? Simd::OFFSET_OF_SIGNED : M::OFFSET;
    const int64_t count = p.inputs / BLOCK_K;
    const int8_t * const bytes = activations.bytes + row * p.inputs;
    const ActivationBlock * const blocks = activations.blocks + row * count;
    Floats sums[ROWS];
    for (int r = 0; r < ROWS; r++) sums[r] = Simd::all(0.0f);
    const uint8_t * at = panel;
    for (int64_t n = 0; n < count;) {
        const uint8_t * const head = at;
        at += M::LAYOUT.head_bytes;
        for (int in_super = 0; in_super < M::LAYOUT.blocks; in_super++, n++, at += M::LAYOUT.block_bytes()) {
            Floats scales[2], min;
            if constexpr (M::SUPER) {
                const Floats step = Simd::halves(head + 2 * first);
                scales[0] = Simd::multiply(step, M::TWO_SCALES ? Simd::signed_bytes(at + first) : Simd::unsigned_bytes(at + first));
                if constexpr (M::TWO_SCALES) scales[1] = Simd::multiply(step, Simd::signed_bytes(at + OUTPUTS + first));
                if constexpr (M::HAS_MIN)
                    min = Simd::multiply(Simd::halves(head + 2 * (OUTPUTS + first)), Simd::unsigned_bytes(at + OUTPUTS + first));
            } else {
                scales[0] = Simd::halves(at + 2 * first);
                if constexpr (M::HAS_MIN) min = Simd::halves(at + 2 * (OUTPUTS + first));
            }
            const uint8_t * const low = at + M::LAYOUT.scale_bytes;
            if (ROWS > 1 && first == 0 && row % CHUNK_ROWS == 0)  // one row waits for nothing but memory
                for (int line = 0; line < M::LAYOUT.block_bytes(); line += 64) __builtin_prefetch(at + AHEAD + line, 0, 2);
            Ints sum[ROWS];
#pragma GCC unroll 4
            for (int pair = 0; pair < BLOCK_K / GROUP / 2; pair++) {
                if (pair == 0 || (M::TWO_SCALES && pair == 2))
                    for (int r = 0; r < ROWS; r++) {
                        const int32_t * halves = blocks[r * count + n].half_sums;
                        sum[r] = Simd::all(OFFSET == 0 ? 0 : OFFSET * (M::TWO_SCALES ? halves[pair / 2] : halves[0] + halves[1]));
                    }
                Ints a, b;
                codes<Simd, TYPE>(low, pair, first, a, b);
                const int8_t * const with = bytes + n * BLOCK_K + pair * 2 * GROUP;
                for (int r = 0; r < ROWS; r++) sum[r] = add_products<Simd, TYPE>(sum[r], a, with + r * p.inputs);
                for (int r = 0; r < ROWS; r++) sum[r] = add_products<Simd, TYPE>(sum[r], b, with + r * p.inputs + GROUP);
                if (pair == 3 || (M::TWO_SCALES && pair == 1))
                    for (int r = 0; r < ROWS; r++) {
                        const Floats scale = Simd::multiply(scales[M::TWO_SCALES ? pair / 2 : 0], Simd::all(blocks[r * count + n].scale));
                        sums[r] = Simd::multiply_add(Simd::floats(sum[r]), scale, sums[r]);
                    }
            }
            if constexpr (M::HAS_MIN)
                for (int r = 0; r < ROWS; r++) {
                    const Floats sum = Simd::all(blocks[r * count + n].scaled_sum);
                    sums[r] = M::SUPER ? Simd::minus_product(min, sum, sums[r]) : Simd::multiply_add(min, sum, sums[r]);
                }
        }
    }
    for (int r = 0; r < ROWS; r++) Simd::store(to + r * stride + first, sums[r]);
}

template <class Simd, WeightType TYPE>
void multiply_panel(const Product & p, const Activations & activations, int64_t row, int64_t end, int64_t panel) {
    const uint8_t * const weights = p.weights + panel * panel_bytes(TYPE, p.inputs);
    const int64_t outputs = std::min<int64_t>(OUTPUTS, p.outputs - panel * OUTPUTS);
    const bool whole = outputs == OUTPUTS;
    alignas(64) float last[Simd::ROWS * OUTPUTS];
    while (row < end) {
        const int rows = static_cast<int>(std::min<int64_t>(Simd::ROWS, end - row));
        float * const out = p.out + row * p.outputs + panel * OUTPUTS;
        const auto multiply = [&](auto number) {
            constexpr int ROWS = std::min(decltype(number)::value, Simd::ROWS);
            for (int first = 0; first < OUTPUTS; first += Simd::WIDTH)
                multiply_rows<Simd, TYPE, ROWS>(p, activations, row, weights, first, whole ? out : last, whole ? p.outputs : OUTPUTS);
        };
        switch (rows) {
            case 1: multiply(Number<1>{}); break;
            case 2: multiply(Number<2>{}); break;
            case 3: multiply(Number<3>{}); break;
            case 4: multiply(Number<4>{}); break;
            case 5: multiply(Number<5>{}); break;
            case 6: multiply(Number<6>{}); break;
            case 7: multiply(Number<7>{}); break;
            default: multiply(Number<8>{});
        }
        for (int r = 0; !whole && r < rows; r++) std::memcpy(out + r * p.outputs, last + r * OUTPUTS, sizeof(float) * outputs);
        row += rows;
    }
}

template <class Simd> void multiply_panel(const Product & p, const Activations & activations, int64_t row, int64_t end, int64_t panel) {
    switch (p.type) {
        case WeightType::Q4_0: return multiply_panel<Simd, WeightType::Q4_0>(p, activations, row, end, panel);
        case WeightType::Q4_1: return multiply_panel<Simd, WeightType::Q4_1>(p, activations, row, end, panel);
        case WeightType::Q5_0: return multiply_panel<Simd, WeightType::Q5_0>(p, activations, row, end, panel);
        case WeightType::Q5_1: return multiply_panel<Simd, WeightType::Q5_1>(p, activations, row, end, panel);
        case WeightType::Q8_0: return multiply_panel<Simd, WeightType::Q8_0>(p, activations, row, end, panel);
        case WeightType::Q4_K: return multiply_panel<Simd, WeightType::Q4_K>(p, activations, row, end, panel);
        case WeightType::Q5_K: return multiply_panel<Simd, WeightType::Q5_K>(p, activations, row, end, panel);
        case WeightType::Q6_K: return multiply_panel<Simd, WeightType::Q6_K>(p, activations, row, end, panel);
    }
}

// A number that is not finite makes its block's scale NaN, and so all outputs of its row.
template <class Simd> void round_row(const float * in, int64_t inputs, int8_t * bytes, ActivationBlock * blocks) {
    for (int64_t n = 0; n < inputs / BLOCK_K; n++) {
        const float largest = Simd::largest_of_32(in + n * BLOCK_K);
        ActivationBlock & block = blocks[n];
        const bool finite = largest <= 3.4028234e38f;
        Simd::round_32(in + n * BLOCK_K, finite && largest > SMALLEST ? 127.0f / largest : 0.0f, finite, bytes + n * BLOCK_K, block.half_sums);
        block.scale = !finite ? NAN : largest > SMALLEST ? largest / 127.0f : 0.0f;
        block.scaled_sum = block.scale * static_cast<float>(block.half_sums[0] + block.half_sums[1]);
    }
}

template <class Simd> void multiply(const Product & p, const Activations & activations, int64_t & taken, int threads) {
    const int64_t count = panels(p.outputs), units = count * ((p.rows + CHUNK_ROWS - 1) / CHUNK_ROWS);
    const int64_t together = std::max<int64_t>(1, std::min<int64_t>(8, units / (4 * threads)));
    for (int64_t first; (first = __atomic_fetch_add(&taken, together, __ATOMIC_RELAXED)) < units;)
        for (int64_t unit = first; unit < std::min(first + together, units); unit++) {
            const int64_t row = unit / count * CHUNK_ROWS;
            multiply_panel<Simd>(p, activations, row, std::min(p.rows, row + CHUNK_ROWS), unit % count);
        }
}

template <class Simd> constexpr ProductFunctions PRODUCT_FUNCTIONS = {round_row<Simd>, multiply<Simd>};

}  // namespace
