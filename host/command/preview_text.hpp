// Previewed rows as text for a terminal or a file, as a line of JSON, and as a page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/data/preview.hpp"

namespace chassis {

// The row with colours, or with marks around trained text. Foreign control characters are escaped.
std::string preview_text(const PreviewRow& row, bool colours, bool ids);
// Explains the colours or marks.
std::string preview_legend(bool colours);
Json preview_json(const std::string& set, const PreviewRow& row);

constexpr std::string_view kPreviewHtmlHead = "<!doctype html><!-- chassis data preview -->\n";
std::string preview_html(const std::vector<PreviewRow>& rows, const std::string& note);

}  // namespace chassis
