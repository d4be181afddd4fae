# chassis_cuda_test(<name> KERNELS <file.cu>… SOURCES <test.cpp>… [ON_CPU <test.cpp>…] [LIBS …] [MUTANTS file.toml])
# Tests the kernels of a plugin. With CUDA, test <name> has the label gpu. On x86-64, tests <name>_ascending,
# _descending and _shuffled have the label cuda_on_cpu: kernels and tests are compiled as C++ against
# tests/support/cuda_on_cpu, and take turns in three orders. ON_CPU are sources of those tests only. MUTANTS is a table
# of defects that those tests must find, a test with the label slow; see tests/support/cuda_on_cpu/mutants.py.
function(chassis_cuda_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MUTANTS" "KERNELS;SOURCES;ON_CPU;LIBS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "chassis_cuda_test(${name}): unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/tests" OUTPUT_VARIABLE folder)
  if(CHASSIS_CUDA_FOUND)
    chassis_test(${name} SOURCES ${arg_SOURCES} ${arg_KERNELS} LIBS ${arg_LIBS} LABELS gpu)
    string(MAKE_C_IDENTIFIER "test_${folder}_${name}" target)
    target_include_directories(${target} PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()

  # A .cu file cannot be CUDA in one target and C++ in another of the same folder, so a C++ file includes it.
  set(kernels "")
  foreach(kernel IN LISTS arg_KERNELS)
    cmake_path(GET kernel FILENAME file)
    set(wrapper "${CMAKE_CURRENT_BINARY_DIR}/${name}_${file}.cpp")
    file(CONFIGURE OUTPUT "${wrapper}" CONTENT "#include \"${kernel}\"\n")
    list(APPEND kernels "${wrapper}")
  endforeach()
  chassis_test(${name}_ascending SOURCES ${arg_SOURCES} ${arg_ON_CPU} ${kernels} LIBS ${arg_LIBS} cuda_on_cpu
               LABELS cuda_on_cpu ENVIRONMENT CUDA_ON_CPU_ORDER=ascending)
  string(MAKE_C_IDENTIFIER "test_${folder}_${name}_ascending" target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF OUTPUT_NAME ${name}_on_cpu)
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS "-O1")
  get_test_property(${folder}/${name}_ascending TIMEOUT timeout)
  foreach(order IN ITEMS descending shuffled:1)
    string(REGEX REPLACE ":.*" "" suffix ${order})
    add_test(NAME ${folder}/${name}_${suffix} COMMAND ${target} --gtest_brief=1)
    set_tests_properties(${folder}/${name}_${suffix} PROPERTIES
      TIMEOUT ${timeout} LABELS cuda_on_cpu ENVIRONMENT CUDA_ON_CPU_ORDER=${order})
  endforeach()

  # Mutants are compiled with sanitizers of their own.
  if(arg_MUTANTS AND NOT CHASSIS_SANITIZE)
    find_package(Python3 3.11 QUIET COMPONENTS Interpreter)
    if(NOT Python3_FOUND)
      message(STATUS "CUDA: no Python 3.11, the mutants of ${folder} are not tried")
      return()
    endif()
    set(libraries "")
    foreach(library IN LISTS arg_LIBS ITEMS GTest::gtest GTest::gtest_main)
      if(TARGET ${library})
        get_target_property(type ${library} TYPE)
        if(NOT type STREQUAL "INTERFACE_LIBRARY")
          list(APPEND libraries $<TARGET_FILE:${library}>)
        endif()
      endif()
    endforeach()
    add_test(NAME ${folder}/${name}_mutants COMMAND_EXPAND_LISTS COMMAND
      "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tests/support/cuda_on_cpu/mutants.py"
      --table "${CMAKE_CURRENT_SOURCE_DIR}/${arg_MUTANTS}" --kernels ${arg_KERNELS} --compiler "${CMAKE_CXX_COMPILER}"
      --include "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/sdk/cpp" "${CHASSIS_ABI_HEADERS}"
      --objects $<TARGET_OBJECTS:${target}> $<TARGET_OBJECTS:cuda_on_cpu> --libraries ${libraries})
    set_tests_properties(${folder}/${name}_mutants PROPERTIES TIMEOUT ${timeout} LABELS "cuda_on_cpu;slow" PROCESSORS 2)
  endif()
endfunction()
