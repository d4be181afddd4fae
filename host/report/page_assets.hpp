// The files of page/ and uPlot, which are part of the program.
#pragma once

#include <string_view>

namespace chassis {

std::string_view page_style();
std::string_view page_script();
std::string_view uplot_style();
std::string_view uplot_script();

}  // namespace chassis
