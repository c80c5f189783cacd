// Functions of vectors, for any instruction set that a Simd type describes (avx512.h is one).
#pragma once

namespace {

// exp(x), to 2 units in the last place, for x <= 0. What is below the range becomes about 1e-38; NaN stays.
template <class Simd> typename Simd::Vector exp_of(typename Simd::Vector x) {
    // Taylor's series of 2^f, |f| <= 1/2
    constexpr float terms[] = {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f};
    const auto t = Simd::multiply(Simd::larger(Simd::all(-87.0f), x), Simd::all(1.44269504f));
    const auto n = Simd::rounded(t);
    const auto f = Simd::subtract(t, n);
    auto sum = Simd::all(terms[0]);
    for (int i = 1; i < 7; i++) sum = Simd::multiply_add(sum, f, Simd::all(terms[i]));
    return Simd::times_power_of_2(sum, n);
}

template <class Simd> float exp_of_one(float x) { return Simd::first(exp_of<Simd>(Simd::all(x))); }

// tanh(x) = sign(x) (1 - 2 e / (1 + e)), e = exp(-2 |x|)
template <class Simd> typename Simd::Vector tanh_of(typename Simd::Vector x) {
    const auto e = exp_of<Simd>(Simd::multiply(Simd::absolute(x), Simd::all(-2.0f)));
    const auto one = Simd::all(1.0f);
    return Simd::with_sign_of(Simd::divide(Simd::subtract(one, e), Simd::add(one, e)), x);
}

}  // namespace
