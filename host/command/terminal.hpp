// What the terminal on standard output can show.
#pragma once

#include "host/report/run_summary.hpp"

namespace chassis {

// 80 columns if standard output is no terminal or does not say; no Unicode unless the locale has it.
SummaryStyle terminal_style();

}  // namespace chassis
