#include "team.h"

#include <atomic>
#include <cstring>
#include <omp.h>

namespace {

const Variant VARIANTS[] = {  // the fastest first
#if defined(__x86_64__)
    {"AVX-512 VNNI", ATTENTION_AVX512, PRODUCTS_AVX512, ROWS_AVX512,
     [] { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"); }},
    {"AVX-512", ATTENTION_AVX512, PRODUCTS_AVX2, ROWS_AVX512,
     [] { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq"); }},
    {"AVX2", ATTENTION_AVX2, PRODUCTS_AVX2, ROWS_AVX2,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }},
#endif
};

const Variant * fastest() {
    for (const Variant & each : VARIANTS)
        if (each.runs()) return &each;
    return nullptr;
}

std::atomic<const Variant *> & chosen() {
    static std::atomic<const Variant *> one{fastest()};
    return one;
}

}  // namespace

const Variant * variant() { return chosen(); }

const Variant * variant_named(const char * name) {
    for (const Variant & each : VARIANTS)
        if (std::strcmp(each.name, name) == 0 && each.runs()) return &each;
    return nullptr;
}

void use(const Variant * one) { chosen() = one; }

namespace {

// Whether one must end before the other begins. Threads have the same tokens in each step, so that they need not wait
// for each other where both take the same memory token by token.
bool conflict(const Access & a, const Access & b) {
    const char * const at = static_cast<const char *>(a.begin), * const other = static_cast<const char *>(b.begin);
    if ((!a.writes && !b.writes) || at + a.bytes <= other || other + b.bytes <= at) return false;
    return at != other || a.stride == 0 || a.stride != b.stride || a.tokens != b.tokens;
}

}  // namespace

void Plan::add(Step step, std::initializer_list<Access> accesses) {
    for (const Access & access : accesses)
        for (const Access & before : since_) step.wait = step.wait || conflict(access, before);
    if (step.wait) since_.clear();
    since_.insert(since_.end(), accesses);
    steps_.push_back(step);
}

void Plan::run(Scratch & scratch) {
#pragma omp parallel num_threads(scratch.threads)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        for (size_t n = 0; n < steps_.size();) {
            if (steps_[n].wait) {
#pragma omp barrier
            }
            if (steps_[n].together) {
                steps_[n].together(steps_[n], scratch, static_cast<int>(threads));
                n++;
                continue;
            }
            // All steps of a token while its numbers are in the cache.
            const int64_t tokens = steps_[n].tokens;
            size_t end = n + 1;
            while (end < steps_.size() && steps_[end].of_token && !steps_[end].wait && steps_[end].tokens == tokens) end++;
            for (int64_t token = tokens * thread / threads; token < tokens * (thread + 1) / threads; token++)
                for (size_t step = n; step < end; step++) steps_[step].of_token(steps_[step], scratch, token);
            n = end;
        }
    }
}
