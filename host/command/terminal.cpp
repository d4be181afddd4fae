// Asks the terminal for its width, and the environment for its characters.
#include "host/command/terminal.hpp"

#include <sys/ioctl.h>

#include <cstdlib>
#include <string_view>

#include "host/base/output.hpp"

namespace chassis {

SummaryStyle terminal_style() {
  SummaryStyle style;
  winsize size{};
  if (ioctl(output_descriptor(), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) style.width = size.ws_col;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (!value || !*value) continue;
    const std::string_view locale = value;
    style.unicode = locale.find("UTF-8") != std::string_view::npos || locale.find("utf8") != std::string_view::npos;
    return style;
  }
  return style;
}

}  // namespace chassis
