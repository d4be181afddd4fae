// Scans in a separate process, for formats that parse more than headers. That process executes no other program, writes
// no files, and is limited in memory and time. It returns its findings as lines of JSON, which are checked like any
// other answer. If it crashes, the error names the file that it was reading.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/format_plugin.hpp"

namespace chassis {

// Runs `command`, which must call answer_scan() for the same directory. Returns nothing if the directory is not of that
// format; `reason` then says which files were expected. Throws a storage error with the reader's message, or with how
// the process ended.
std::optional<FormatScan> scan_isolated(const std::vector<std::string>& command, const SourceDirectory& directory,
                                        std::string& reason);

// The reader process: drops the rights that a scan does not need, scans, and writes its findings to the standard
// output. Returns the exit code.
int answer_scan(const FormatPlugin& format, const std::string& directory);

}  // namespace chassis
