// Runs as one self-contained HTML page: it fetches nothing but, if it is live, its own data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/report/run_reader.hpp"

namespace chassis {

// The beginning of every page, by which it is recognised.
inline constexpr std::string_view kReportHtmlHead = "<!doctype html><!-- chassis report -->\n";

// `runs` has at least one. A live page reads "events", whose messages announce new data, and then "data?since=STEP",
// which is live_data(). Charts are drawn by uPlot (MIT), which the page contains.
std::string page_html(const std::vector<const RunReader*>& runs, bool is_live = false);
// JSON: the tables of the page, and the metrics of the steps after `since`, rounded down to buckets.
std::string live_data(const RunReader& run, int64_t since);

}  // namespace chassis
