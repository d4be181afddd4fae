# chassis_find_torch(): LibTorch as the target chassis_torch, without the wheel's TorchConfig.cmake, which requires a
# CUDA toolkit. CHASSIS_TORCH names a torch folder with include/ and lib/, such as the one in an unpacked PyTorch wheel.

set(CHASSIS_TORCH "" CACHE PATH "LibTorch >= 2.11: a folder with include/ and lib/")

function(chassis_find_torch)
  if(TARGET chassis_torch)
    return()
  endif()
  set(dir "${CHASSIS_TORCH}")
  if(NOT dir)
    set(dir "${CHASSIS_TORCH_DEFAULT}")
  endif()
  if(NOT dir)
    set(dir "${PROJECT_SOURCE_DIR}/.deps/libtorch-2.11.0/torch")
  endif()
  get_filename_component(dir "${dir}" REALPATH)
  set(header "${dir}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${header}" OR NOT EXISTS "${dir}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "no LibTorch in ${dir}; run tools/bootstrap, or pass -DCHASSIS_TORCH=DIR, "
                        "a folder with include/ and lib/ of LibTorch 2.11 or later")
  endif()
  file(STRINGS "${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" version "${lines}")
  if(version VERSION_LESS 2.11)
    message(FATAL_ERROR "LibTorch ${version} in ${dir} is too old; 2.11 or later is needed")
  endif()
  message(STATUS "LibTorch ${version}: ${dir}")
  set(CHASSIS_TORCH_DIR "${dir}" CACHE INTERNAL "the folder of LibTorch in use")
  set(CHASSIS_TORCH_VERSION "${version}" CACHE INTERNAL "its version")

  add_library(chassis_torch_cpu SHARED IMPORTED GLOBAL)
  set_target_properties(chassis_torch_cpu PROPERTIES
    IMPORTED_LOCATION "${dir}/lib/libtorch_cpu.so" IMPORTED_SONAME libtorch_cpu.so)
  add_library(chassis_torch_c10 SHARED IMPORTED GLOBAL)
  set_target_properties(chassis_torch_c10 PROPERTIES
    IMPORTED_LOCATION "${dir}/lib/libc10.so" IMPORTED_SONAME libc10.so)
  add_library(chassis_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(chassis_torch SYSTEM INTERFACE
    "${dir}/include" "${dir}/include/torch/csrc/api/include")
  target_link_libraries(chassis_torch INTERFACE chassis_torch_cpu chassis_torch_c10)
  # libtorch_cpu finds its CUDA run-time libraries itself; the link need not.
  target_link_options(chassis_torch INTERFACE LINKER:--allow-shlib-undefined)

  # The OpenMP run-time library in LibTorch's folder, so that a process has one thread pool.
  file(GLOB gomp "${dir}/lib/libgomp*.so*")
  if(gomp)
    list(GET gomp 0 gomp)
    add_library(chassis_torch_gomp SHARED IMPORTED GLOBAL)
    set_target_properties(chassis_torch_gomp PROPERTIES IMPORTED_LOCATION "${gomp}")
  endif()
endfunction()
