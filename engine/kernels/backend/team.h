// What is computed of a graph, and how threads share it: one team for all of its nodes.
#pragma once

#include "../attention/attention.h"
#include "../products/products.h"
#include "../rows/rows.h"

#include <ggml-backend.h>

#include <initializer_list>
#include <vector>

struct Variant {
    const char * name;
    const AttentionFunctions & attention;
    const ProductFunctions & products;
    const RowFunctions & rows;
    bool (*runs)();
};

const Variant * variant();  // what is used: at first the fastest that runs here; null where none does
const Variant * variant_named(const char * name);  // null where it does not run
void use(const Variant *);

// Memory of a context of llama.cpp, for what is kept between two steps.
struct Scratch {
    int threads = 1;
    std::vector<float> partials;          // of attention
    std::vector<int8_t> rounded;          // activations, and
    std::vector<ActivationBlock> blocks;  // their scales
    std::vector<float> angles;            // cosines and sines, of each token

    Activations activations() { return {rounded.data(), blocks.data()}; }
};

// A step is taken token by token, each thread those of its own, or by all threads together.
struct Step {
    const ggml_tensor * node;
    int64_t tokens;
    void (*of_token)(const Step &, Scratch &, int64_t token);
    void (*together)(Step &, Scratch &, int threads);
    int64_t taken = 0;  // what threads that work together have begun
    bool wait = false;  // until all threads have ended the steps before
};

// Memory that a step reads or writes. Of token n it is [begin + n * stride, ...); stride 0: of all tokens, or of all
// threads.
struct Access {
    const void * begin;
    size_t bytes, stride;
    int64_t tokens;
    bool writes;
};

class Plan {
public:
    void add(Step, std::initializer_list<Access>);
    void run(Scratch &);

    const ggml_tensor * rounded = nullptr;  // whose activations scratch holds by now
    const ggml_tensor * angles = nullptr;   // the first node with the angles that scratch holds by now

private:
    std::vector<Step> steps_;
    std::vector<Access> since_;  // the last wait
};
