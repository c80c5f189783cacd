// Row operations, for any instruction set that a Simd type describes.
#pragma once

#include "../simd/functions.h"
#include "rows.h"

#include <cmath>
#include <cstring>

namespace {

// out = vectors(x, y), and numbers(x, y) for those that fill no vector.
template <class Simd, class Vectors, class Numbers>
void each(const float * x, const float * y, int64_t count, float * out, Vectors vectors, Numbers numbers) {
    int64_t i = 0;
    for (; i + Simd::WIDTH <= count; i += Simd::WIDTH) Simd::store(out + i, vectors(Simd::load(x + i), Simd::load(y + i)));
    for (; i < count; i++) out[i] = numbers(x[i], y[i]);
}

template <class Simd> void add(const float * x, const float * y, int64_t count, float * out) {
    each<Simd>(x, y, count, out, Simd::add, [](float a, float b) { return a + b; });
}

template <class Simd> void multiply(const float * x, const float * y, int64_t count, float * out) {
    each<Simd>(x, y, count, out, Simd::multiply, [](float a, float b) { return a * b; });
}

template <class Simd> void normalise(const float * x, float epsilon, int64_t count, float * out) {
    auto sums = Simd::all(0.0f);
    float sum = 0.0f;
    int64_t i = 0;
    for (; i + Simd::WIDTH <= count; i += Simd::WIDTH) {
        const auto here = Simd::load(x + i);
        sums = Simd::multiply_add(here, here, sums);
    }
    for (; i < count; i++) sum += x[i] * x[i];
    const float factor = 1.0f / std::sqrt((Simd::sum(sums) + sum) / count + epsilon);
    each<Simd>(x, x, count, out, [=](auto a, auto) { return Simd::multiply(a, Simd::all(factor)); }, [=](float a, float) { return a * factor; });
}

// silu(x) = x / (1 + exp(-x)), without exp of what is positive.
template <class Simd> typename Simd::Vector silu(typename Simd::Vector x) {
    const auto one = Simd::all(1.0f), e = exp_of<Simd>(Simd::subtract(Simd::all(0.0f), Simd::absolute(x)));
    return Simd::divide(Simd::multiply(x, Simd::select(Simd::negative(x), e, one)), Simd::add(one, e));
}

template <class Simd> void gate(const float * x, const float * y, int64_t count, float * out) {
    each<Simd>(x, y, count, out, [](auto a, auto b) { return Simd::multiply(silu<Simd>(a), b); },
               [](float a, float b) { return Simd::first(silu<Simd>(Simd::all(a))) * b; });
}

template <class Simd> void rotate(const float * x, const float * cosines, const float * sines, int pairs, int distance, float * out) {
    float from[MOST_ROTATED];
    std::memcpy(from, x, 2 * sizeof(float) * pairs);
    const int step = distance == 1 ? 2 : 1;
    for (int i = 0; i < pairs; i++) {
        const float a = from[i * step], b = from[i * step + distance];
        out[i * step] = a * cosines[i] - b * sines[i];
        out[i * step + distance] = a * sines[i] + b * cosines[i];
    }
}

template <class Simd> void to_f16(const float * x, int64_t count, uint16_t * out) {
    int64_t i = 0;
    for (; i + Simd::WIDTH <= count; i += Simd::WIDTH) Simd::F16::store(out + i, Simd::load(x + i));
    if (i == count) return;
    float last[Simd::WIDTH] = {};
    uint16_t halves[Simd::WIDTH];
    std::memcpy(last, x + i, sizeof(float) * (count - i));
    Simd::F16::store(halves, Simd::load(last));
    std::memcpy(out + i, halves, sizeof(uint16_t) * (count - i));
}

template <class Simd> void to_bf16(const float * x, int64_t count, uint16_t * out) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
        out[i] = uint16_t((is_nan ? bits | 0x400000 : bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to the nearest, or to even
    }
}

template <class Simd> constexpr RowFunctions ROW_FUNCTIONS = {
    add<Simd>, multiply<Simd>, normalise<Simd>, gate<Simd>, rotate<Simd>, to_f16<Simd>, to_bf16<Simd>,
};

}  // namespace
