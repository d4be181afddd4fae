# chassis_host_library(), chassis_test() and chassis_fuzz() add host code.

# The layers of the host, lowest first; a folder may depend on earlier ones only.
set(CHASSIS_HOST_LAYERS
  base control config plugin launch state service graph compile execute parallel data objective text checkpoint session save
  plan conformance report generate serve train command)

# chassis_host_library(<folder> SOURCES … [DEPS <folder>…] [EXTERNAL <target>…] [TORCH])
# adds the static library chassis_host_<folder>. TORCH gives LibTorch to its sources, but not to users of its headers.
function(chassis_host_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;DEPS;EXTERNAL")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "chassis_host_library(${folder}): unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  list(FIND CHASSIS_HOST_LAYERS ${folder} layer)
  set(target chassis_host_${folder})
  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PUBLIC chassis_sdk ${arg_EXTERNAL})
  foreach(dep IN LISTS arg_DEPS)
    list(FIND CHASSIS_HOST_LAYERS ${dep} dep_layer)
    if(dep_layer LESS 0 OR NOT dep_layer LESS layer)
      message(FATAL_ERROR "host/${folder} may not depend on host/${dep}: the order is ${CHASSIS_HOST_LAYERS}")
    endif()
    target_link_libraries(${target} PUBLIC chassis_host_${dep})
  endforeach()
  if(arg_TORCH)
    target_link_libraries(${target} PRIVATE chassis_torch)
    # LibTorch's include folder contains another fmt, which is found first and has no library.
    target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
    chassis_use_openmp(${target})
  endif()
endfunction()

# at::parallel_for is a header template that is serial without OpenMP. The run-time library must be the libgomp beside
# LibTorch, so only gcc, whose code calls libgomp, gets the flag; clang would add a second pool of threads.
function(chassis_use_openmp target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND TARGET chassis_torch_gomp)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>")
    target_link_libraries(${target} PRIVATE chassis_torch_gomp)
  endif()
endfunction()

# chassis_test(<name> SOURCES … [LIBS …] [LABELS …] [PLUGINS <id>…] [ENVIRONMENT VAR=value…] [ARGS …] [TIMEOUT s]
#              [TORCH] [OWN_MAIN])
# A GoogleTest program: test "host/state/save_plan" in tests/host/state is the target test_host_state_save_plan. PLUGINS
# are built before it. It has the macros CHASSIS_TEST_SOURCE_DIR (the tree), CHASSIS_TEST_BINARY_DIR (the build folder),
# CHASSIS_TEST_PLUGIN_DIR (the plugins of plugins/) and CHASSIS_TEST_STUB_DIR (the plugins of tests/).
function(chassis_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;OWN_MAIN" "TIMEOUT" "SOURCES;LIBS;LABELS;PLUGINS;ENVIRONMENT;ARGS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "chassis_test(${name}): unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/tests" OUTPUT_VARIABLE folder)
  string(MAKE_C_IDENTIFIER "test_${folder}_${name}" target)
  add_executable(${target} ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/${folder}")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  # Compiling a test takes longer than running it.
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O0>")
  if(NOT TARGET chassis_warm_start)
    add_library(chassis_warm_start MODULE "${PROJECT_SOURCE_DIR}/tests/support/warm_start.c")
    set_target_properties(chassis_warm_start PROPERTIES
      OUTPUT_NAME warm_start PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests" UNITY_BUILD OFF)
    target_link_libraries(chassis_warm_start PRIVATE ${CMAKE_DL_LIBS})
  endif()
  add_dependencies(${target} chassis_warm_start)
  set(warm_start "")
  if(NOT CHASSIS_SANITIZE)   # the libraries of sanitizers must be loaded first
    set(warm_start "${PROJECT_BINARY_DIR}/tests/warm_start.so")
  endif()
  # The macros are in a header: as options they would keep other folders from sharing the compiler cache.
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/tests/folders.h" @ONLY CONTENT [[
#define CHASSIS_TEST_SOURCE_DIR "@PROJECT_SOURCE_DIR@"
#define CHASSIS_TEST_BINARY_DIR "@PROJECT_BINARY_DIR@"
#define CHASSIS_TEST_PLUGIN_DIR "@PROJECT_BINARY_DIR@/lib/chassis/plugins"
#define CHASSIS_TEST_STUB_DIR "@PROJECT_BINARY_DIR@/tests/plugins"
#define CHASSIS_TEST_WARM_START "@warm_start@"
]])
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:SHELL:-include ${PROJECT_BINARY_DIR}/tests/folders.h>")
  target_link_libraries(${target} PRIVATE chassis_sdk ${arg_LIBS} GTest::gtest)
  if(NOT arg_OWN_MAIN)
    target_link_libraries(${target} PRIVATE GTest::gtest_main)
  endif()
  if(arg_TORCH)
    target_link_libraries(${target} PRIVATE chassis_torch)
    chassis_use_openmp(${target})
  endif()
  foreach(id IN LISTS arg_PLUGINS)
    add_dependencies(${target} chassis_plugin_${id})
  endforeach()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 2")  # some machines are half as fast
  if(CHASSIS_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  add_test(NAME ${folder}/${name} COMMAND ${target} --gtest_brief=1 ${arg_ARGS})
  set_tests_properties(${folder}/${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" ENVIRONMENT "OMP_WAIT_POLICY=PASSIVE;${arg_ENVIRONMENT}")
endfunction()

# chassis_fuzz(<name> SOURCES … [LIBS …]): a libFuzzer program, built only by the preset "fuzz" and run by tools/fuzz.
function(chassis_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  set(target fuzz_${name})
  add_executable(${target} EXCLUDE_FROM_ALL ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/fuzz")
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE chassis_sdk ${arg_LIBS})
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzz)
    add_custom_target(fuzz)
  endif()
  add_dependencies(fuzz ${target})
endfunction()
