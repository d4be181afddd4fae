// Names the limits of the process (ulimit) that may be the reason of a failure, each with both numbers.
#pragma once

#include <string>

namespace chassis {

// "RLIMIT_DATA is 97.7 MiB, of which 95.1 MiB are in use (ulimit -d)"; several are joined by "; ". Empty: none is set.
std::string memory_limits_text();
// The same, preceded by "RLIMIT_NPROC is 50 processes and threads of this user, of which this process has 7 (ulimit
// -u)", for a thread that cannot start.
std::string thread_limits_text();
// "RLIMIT_FSIZE is 40.0 KiB for each file (ulimit -f)"; empty if it is not set.
std::string file_limit_text();

}  // namespace chassis
