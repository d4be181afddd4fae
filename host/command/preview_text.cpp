// Without colours, marks must also be visible in a log, so they are characters that are rare in data.
#include "host/command/preview_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kReset = "\x1b[0m";

struct Marks {
  const char* open;
  const char* close;
};

Marks marks(TokenState state, bool colours) {
  switch (state) {
    case TokenState::kTrained:
      return colours ? Marks{kGreen, kReset} : Marks{"«", "»"};
    case TokenState::kPartlyInside:
      return colours ? Marks{kYellow, kReset} : Marks{"‹", "›"};
    case TokenState::kMasked:
      break;
  }
  return colours ? Marks{kDim, kReset} : Marks{"", ""};
}

const char* word(TokenState state) {
  return state == TokenState::kTrained ? "trained" : state == TokenState::kPartlyInside ? "straddles" : "masked";
}

// "chat.jsonl:3 chosen, margin 0.5: 25 tokens, 4 trained"
std::string title(const PreviewRow& row) {
  const char* const comma = row.what.empty() || row.about.empty() ? "" : ", ";
  const std::string about = row.what + comma + printable(row.about, 300);
  std::string text = fmt::format("{}:{}{}: {} tokens, ", printable(row.file, 4096), row.line,
                                 about.empty() ? "" : " " + about, row.num_tokens);
  text += row.is_scored ? "the last is scored" : fmt::format("{} trained", row.num_trained_tokens);
  if (!row.drop_reason.empty()) text += "; not used: " + row.drop_reason;
  return text;
}

// "2 labels are not the ids at their places: 0: 73 → 296, 1: 296 → 438"; empty if there is none.
std::string labels_text(const PreviewRow& row) {
  constexpr size_t kMaxShown = 8;
  if (row.other_labels.empty()) return "";
  std::string text = fmt::format("{} {} at {}:", row.other_labels.size(),
                                 row.other_labels.size() == 1 ? "label is not the id" : "labels are not the ids",
                                 row.other_labels.size() == 1 ? "its place" : "their places");
  for (size_t i = 0; i < std::min(row.other_labels.size(), kMaxShown); ++i) {
    const PreviewLabel& one = row.other_labels[i];
    text += fmt::format("{} {}: {} → {}", i == 0 ? "" : ",", one.place, one.id, one.label);
  }
  if (row.other_labels.size() > kMaxShown) text += ", …";
  if (row.has_shifted_labels) text += "; all are the next ids: they were shifted beforehand, and are shifted again";
  return text;
}

}  // namespace

std::string preview_legend(bool colours) {
  const auto shown = [&](TokenState state, const char* text) {
    const Marks mark = marks(state, colours);
    return fmt::format("{}{}{}", mark.open, text, mark.close);
  };
  return fmt::format("{}, {}, {}\n", shown(TokenState::kTrained, "trained"), shown(TokenState::kMasked, "not trained"),
                     shown(TokenState::kPartlyInside, "masked because it lies only partly in what is trained"));
}

std::string preview_text(const PreviewRow& row, bool colours, bool ids) {
  std::string text = title(row) + "\n";
  for (const PreviewPiece& piece : row.pieces) {
    const Marks mark = marks(piece.state, colours);
    text += mark.open + printable_lines(piece.text) + mark.close;
  }
  if (!text.ends_with('\n')) text += '\n';
  if (const std::string labels = labels_text(row); !labels.empty()) text += labels + "\n";
  for (const auto& [what, times] : row.changes)
    text += fmt::format("  changed {} times: {}\n", times, printable(what, 1000));
  if (!ids) return text;
  for (const PreviewPiece& piece : row.pieces)
    for (size_t i = 0; i < piece.ids.size(); ++i)
      text += fmt::format("{:>8}  {:<9}  {}\n", piece.ids[i], word(piece.state), printable(piece.texts[i], 60));
  return text;
}

Json preview_json(const std::string& set, const PreviewRow& row) {
  Json json;
  json["set"] = set;
  json["file"] = row.file;
  json["line"] = row.line;
  if (!row.what.empty()) json["what"] = row.what;
  if (row.margin) json["margin"] = *row.margin;
  if (!row.targets.empty()) {
    json["targets"] = Json::array();
    for (const double target : row.targets) json["targets"].push_back(std::isnan(target) ? Json() : Json(target));
  }
  if (row.is_scored) json["scored"] = true;
  json["dropped"] = row.drop_reason.empty() ? Json() : Json(row.drop_reason);
  json["num_tokens"] = row.num_tokens;
  json["num_trained_tokens"] = row.num_trained_tokens;
  if (!row.other_labels.empty()) {
    json["shifted_labels"] = row.has_shifted_labels;
    json["other_labels"] = Json::array();
    for (const PreviewLabel& one : row.other_labels)
      json["other_labels"].push_back({{"place", one.place}, {"id", one.id}, {"label", one.label}});
  }
  json["pieces"] = Json::array();
  for (const PreviewPiece& piece : row.pieces) {
    Json item;
    item["state"] = word(piece.state);
    item["text"] = piece.text;
    item["ids"] = piece.ids;
    json["pieces"].push_back(std::move(item));
  }
  const auto counts = [](const std::map<std::string, uint64_t>& all) {
    Json object = Json::object();
    for (const auto& [what, times] : all) object[what] = times;
    return object;
  };
  json["changes"] = counts(row.changes);
  json["unused_keys"] = counts(row.unused_keys);
  return json;
}

std::string preview_html(const std::vector<PreviewRow>& rows, const std::string& note) {
  std::string page(kPreviewHtmlHead);
  page +=
      "<html><head><meta charset=\"utf-8\"><title>chassis data preview</title><style>\n"
      "body{font:14px/1.5 ui-monospace,monospace;margin:2em;max-width:70em;color:#222;background:#fff}\n"
      "h2{font-size:14px;margin:2em 0 .5em}pre{white-space:pre-wrap;border:1px solid #ddd;padding:1em;margin:0}\n"
      ".masked{color:#999}.trained{background:#d7f5dc}.straddles{background:#ffe9b0}.unused{opacity:.5}\n"
      "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{border-color:#444}"
      ".trained{background:#1d4d29}.straddles{background:#5a4510}}\n"
      "</style></head><body>\n";
  page +=
      "<p><span class=\"trained\">trained</span>, <span class=\"masked\">not trained</span>, <span "
      "class=\"straddles\">masked because it lies only partly in what is trained</span></p>\n";
  page += "<p>" + html_text(note) + "</p>\n";
  for (const PreviewRow& row : rows) {
    page +=
        fmt::format("<h2>{}</h2>\n<pre{}>", html_text(title(row)), row.drop_reason.empty() ? "" : " class=\"unused\"");
    for (const PreviewPiece& piece : row.pieces) {
      std::string ids;
      for (const int32_t id : piece.ids) ids += fmt::format("{}{}", ids.empty() ? "" : " ", id);
      page += fmt::format("<span class=\"{}\" title=\"{}\">{}</span>", word(piece.state), ids,
                          html_text(printable_lines(piece.text)));
    }
    page += "</pre>\n";
    if (const std::string labels = labels_text(row); !labels.empty()) page += "<p>" + html_text(labels) + "</p>\n";
    for (const auto& [what, times] : row.changes)
      page += fmt::format("<p>changed {} times: {}</p>\n", times, html_text(printable(what, 1000)));
  }
  return page + "</body></html>\n";
}

}  // namespace chassis
