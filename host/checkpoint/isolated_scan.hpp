// A scan in a process of its own, for formats that take more apart than headers. That process executes no other
// program, writes nothing, and is limited in memory and time; what it finds comes back as lines of JSON and is checked
// like any other answer. If it crashes, that is an error here, which names the file it was reading.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/format_plugin.hpp"

namespace chassis {

// Runs `command`, which is to end in answer_scan() of the same directory. Nothing if the directory is not of that
// format; `reason` then says what was looked for. Throws a storage error with the reader's words, or how it ended.
std::optional<FormatScan> scan_isolated(const std::vector<std::string>& command, const SourceDirectory& directory,
                                        std::string& reason);

// The other end, in the process that was started: gives up what a scan does not need, scans, and writes what it finds
// to the standard output. Returns the exit code.
int answer_scan(const FormatPlugin& format, const std::string& directory);

}  // namespace chassis
