# CMake reads this after each project() of llama-cpp-python (CMAKE_PROJECT_INCLUDE), to build only the libraries that
# its Python binding loads.
if(PROJECT_NAME STREQUAL "llama.cpp")
  # Helpers of llama.cpp's own programs. The package forces the cache variable on, so only a variable turns it off.
  set(LLAMA_BUILD_COMMON OFF)
  # More than a hundred small files of model architectures, which mostly read the same headers.
  set(CMAKE_UNITY_BUILD ON)
elseif(PROJECT_NAME STREQUAL "ggml")
  # Its sources define the same static names, and cannot be compiled as one.
  set(CMAKE_UNITY_BUILD OFF)
endif()
