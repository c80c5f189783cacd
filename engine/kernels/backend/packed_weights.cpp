// A type of buffer: what llama.cpp loads into it is packed as the kernels read it.
#include "ggml_interface.h"
#include "operations.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace {

constexpr size_t ALIGNMENT = 64;
constexpr size_t HUGE_PAGE = size_t(2) << 20;
constexpr const char * TYPE_NAME = "medusaq packed";

std::atomic<int> packed_buffers{0};

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    WeightType type;
    GGML_ASSERT(weight_type(tensor->type, type) && offset == 0 && size == ggml_nbytes(tensor));
    pack(type, tensor->ne[0], tensor->ne[1], data, tensor->data);
}

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    void * memory = nullptr;
    if (posix_memalign(&memory, HUGE_PAGE, size)) return nullptr;
    madvise(memory, size, MADV_HUGEPAGE);
    ggml_backend_buffer_i functions{};
    functions.free_buffer = [](ggml_backend_buffer_t buffer) {
        packed_buffers--;
        free(buffer->context);
    };
    functions.get_base = [](ggml_backend_buffer_t buffer) { return buffer->context; };
    functions.set_tensor = set_tensor;
    functions.clear = [](ggml_backend_buffer_t buffer, uint8_t value) { std::memset(buffer->context, value, buffer->size); };
    packed_buffers++;
    return ggml_backend_buffer_init(type, functions, memory, size);
}

size_t allocated_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    WeightType type;
    if (!weight_type(tensor->type, type) || ggml_n_dims(tensor) > 2) return ggml_nbytes(tensor);
    return packed_bytes(type, tensor->ne[0], tensor->ne[1]);
}

const char * name(ggml_backend_buffer_type_t) { return TYPE_NAME; }

}  // namespace

ggml_backend_buffer_type_t packed_type(ggml_backend_dev_t device) {
    static ggml_backend_buffer_type only = [&] {
        ggml_backend_buffer_type_i functions{};
        functions.get_name = name;
        functions.alloc_buffer = allocate;
        functions.get_alignment = [](ggml_backend_buffer_type_t) { return ALIGNMENT; };
        functions.get_alloc_size = allocated_size;
        return ggml_backend_buffer_type{functions, device, nullptr};
    }();
    return &only;
}

bool is_packed(ggml_backend_buffer_type_t type) { return type && type->iface.get_name == name; }

bool any_packed() { return packed_buffers > 0; }
