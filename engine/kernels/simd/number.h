// A number as a type, for functions that are compiled for each.
#pragma once

namespace {

template <int N> struct Number {
    static constexpr int value = N;
};

}  // namespace
