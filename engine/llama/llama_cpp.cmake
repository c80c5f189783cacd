# CMake reads this after each project() of llama-cpp-python (CMAKE_PROJECT_INCLUDE), to build only the libraries that
# its Python binding loads, and to build them right.
if(PROJECT_NAME STREQUAL "llama.cpp" AND NOT MEDUSAQ_WHOLE)
  # Helpers of llama.cpp's own programs. The package forces the cache variable on, so only a variable turns it off.
  set(LLAMA_BUILD_COMMON OFF)
  # More than a hundred small files of model architectures, which mostly read the same headers.
  set(CMAKE_UNITY_BUILD ON)
elseif(PROJECT_NAME STREQUAL "ggml")
  # Its sources define the same static names, and cannot be compiled as one.
  set(CMAKE_UNITY_BUILD OFF)
  # GCC is told by its own header that ldtilecfg reads 8 of its 64 bytes. It drops the stores of the others (rows and
  # columns of the AMX tiles), and the first instruction on a tile then ends the process with SIGILL.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/whole_tile_config.h" [[
#ifdef __AMX_TILE__
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%X0" : : "m"(*(const char(*)[64])(config)))
#endif
]])
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include '${CMAKE_CURRENT_BINARY_DIR}/whole_tile_config.h'>")
  endif()
endif()
