// Replaces the chassis program in the tests of `plugins check`: has only the verb that runs one test.
#include <cstdio>
#include <cstring>

#include "host/conformance/check.hpp"
#include "tests/host/plugin/fake_services.hpp"

int main(int argc, char** argv) {
  if (argc != 5 || std::strcmp(argv[1], "plugins") != 0 || std::strcmp(argv[2], "check-in-process") != 0) {
    std::fputs("usage: plugin_check_program plugins check-in-process FILE TEST\n", stderr);
    return 2;
  }
  chassis::FakeServices services;
  return chassis::run_check_in_process(argv[3], argv[4], services);
}
