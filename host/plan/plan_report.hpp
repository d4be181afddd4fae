// A plan as text, JSON and HTML.
#pragma once

#include <string>
#include <string_view>

#include "host/base/json_fwd.hpp"
#include "host/plan/plan.hpp"
#include "host/plan/plan_advice.hpp"
#include "host/plan/plan_traffic.hpp"

namespace chassis {

// `advice` may be NULL.
std::string plan_text(const Plan& plan, const AdviceList* advice);
// Schema "chassis.plan/1"; all sizes are in bytes.
Json plan_json(const Plan& plan, const AdviceList* advice);
// The beginning of every page, by which it is recognised.
inline constexpr std::string_view kPlanHtmlHead =
    "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
    "content=\"width=device-width\">\n"
    "<title>memory plan";
// A self-contained page: bars by kind of rank and category, memory over a step, traffic, advice.
std::string plan_html(const Plan& plan, const AdviceList* advice);

// "0-62, 64"
std::string ranks_text(const std::vector<int>& ranks);
// "; traffic +6 %: tp +3.2 GiB, dp_shard −1.0 GiB"; empty if it does not change.
std::string traffic_change_text(const Advice& advice);

}  // namespace chassis
