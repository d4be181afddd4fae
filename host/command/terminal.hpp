// The capabilities of the terminal on standard output.
#pragma once

#include "host/report/run_summary.hpp"

namespace chassis {

// 80 columns if standard output is not a terminal or reports no width; Unicode only if the locale has it.
SummaryStyle terminal_style();

}  // namespace chassis
