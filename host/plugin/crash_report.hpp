// A process that dies of a signal says in which plugin: SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT.
#pragma once

#include <string>

namespace chassis {

// From now on such a signal is told on stderr, with the innermost plugin on the stack, and then ends the process as it
// would have. Does nothing under sanitizers, which tell more.
void report_crashes();

// [any] Code at `address` belongs to this plugin ("plugin 'x' 1.2"), loaded from `path`, for as long as the process lives.
void name_code(const void* address, const std::string& who, const std::string& path);

}  // namespace chassis
