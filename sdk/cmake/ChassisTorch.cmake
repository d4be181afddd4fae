# chassis_find_torch(): LibTorch as the target chassis_torch, without the wheel's TorchConfig.cmake, which insists on a
# CUDA toolkit. CHASSIS_TORCH names a torch folder with include/ and lib/, such as that of an unpacked PyTorch wheel.

set(CHASSIS_TORCH "" CACHE PATH "LibTorch >= 2.11: a folder with include/ and lib/")

macro(chassis_find_torch)
  if(NOT TARGET chassis_torch)
    set(chassis_torch_dir "${CHASSIS_TORCH}")
    if(NOT chassis_torch_dir)
      set(chassis_torch_dir "${CHASSIS_TORCH_DEFAULT}")
    endif()
    if(NOT chassis_torch_dir)
      set(chassis_torch_dir "${PROJECT_SOURCE_DIR}/.deps/libtorch-2.11.0/torch")
    endif()
    get_filename_component(chassis_torch_dir "${chassis_torch_dir}" REALPATH)
    set(chassis_torch_header "${chassis_torch_dir}/include/torch/headeronly/version.h")
    if(NOT EXISTS "${chassis_torch_header}")
      message(FATAL_ERROR "no LibTorch in ${chassis_torch_dir}; run tools/bootstrap, or pass -DCHASSIS_TORCH=DIR, "
                          "a folder with include/ and lib/ of LibTorch 2.11 or later")
    endif()
    file(STRINGS "${chassis_torch_header}" chassis_torch_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" CHASSIS_TORCH_VERSION
           "${chassis_torch_lines}")
    if(CHASSIS_TORCH_VERSION VERSION_LESS 2.11)
      message(FATAL_ERROR "LibTorch ${CHASSIS_TORCH_VERSION} in ${chassis_torch_dir} is too old; 2.11 or later is needed")
    endif()
    message(STATUS "LibTorch ${CHASSIS_TORCH_VERSION}: ${chassis_torch_dir}")
    set(CHASSIS_TORCH_DIR "${chassis_torch_dir}")

    add_library(chassis_torch_cpu SHARED IMPORTED GLOBAL)
    set_target_properties(chassis_torch_cpu PROPERTIES
      IMPORTED_LOCATION "${CHASSIS_TORCH_DIR}/lib/libtorch_cpu.so" IMPORTED_SONAME libtorch_cpu.so)
    add_library(chassis_torch_c10 SHARED IMPORTED GLOBAL)
    set_target_properties(chassis_torch_c10 PROPERTIES
      IMPORTED_LOCATION "${CHASSIS_TORCH_DIR}/lib/libc10.so" IMPORTED_SONAME libc10.so)
    add_library(chassis_torch INTERFACE IMPORTED GLOBAL)
    target_include_directories(chassis_torch SYSTEM INTERFACE
      "${CHASSIS_TORCH_DIR}/include" "${CHASSIS_TORCH_DIR}/include/torch/csrc/api/include")
    target_link_libraries(chassis_torch INTERFACE chassis_torch_cpu chassis_torch_c10)
    # libtorch_cpu finds its CUDA run-time libraries itself; the link need not.
    target_link_options(chassis_torch INTERFACE -Wl,--allow-shlib-undefined)

    # The OpenMP run-time library beside LibTorch, so that a process has one pool of threads.
    file(GLOB chassis_torch_gomp_file "${CHASSIS_TORCH_DIR}/lib/libgomp*.so*")
    if(chassis_torch_gomp_file)
      list(GET chassis_torch_gomp_file 0 chassis_torch_gomp_file)
      add_library(chassis_torch_gomp SHARED IMPORTED GLOBAL)
      set_target_properties(chassis_torch_gomp PROPERTIES IMPORTED_LOCATION "${chassis_torch_gomp_file}")
    endif()
  endif()
endmacro()
