// The page has the numbers of the files, and foreign text is never markup.
#include "host/report/page.hpp"

#include <gtest/gtest.h>

#include "host/base/json.hpp"
#include "host/report/run_summary.hpp"
#include "tests/host/report/run_folder.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using test::append;
using test::write_run;
using test::write_text;

std::vector<float> floats(const std::string& text) {
  std::string bytes;
  uint32_t bits = 0;
  int num = 0;
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
    num += 6;
    if (num >= 8) bytes += static_cast<char>(bits >> (num -= 8) & 255);
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// The numbers that the page's script reads.
Json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(Page, HasTheNumbersOfTheRun) {
  const test::ScratchDirectory folder;
  write_run(folder / "a", "first", 40);
  const RunReader run(folder / "a");
  const Json data = data_of(page_html({&run}));
  const Json& first = data["runs"][0];
  EXPECT_EQ(first["name"], "first");
  EXPECT_EQ(first["step"], 40);
  EXPECT_EQ(floats(first["metrics"]["loss"]["mean"]), run.history().find("loss")->mean);
  EXPECT_EQ(floats(first["metrics"]["lr"]["mean"]).size(), 40u);
  EXPECT_EQ(first["evaluations"]["held out"]["step"].size(), 10u);
  EXPECT_TRUE(first["scores"].empty());
  EXPECT_EQ(data["live"], false);
}

TEST(Page, OfALongRunHasItsExtremes) {
  const test::ScratchDirectory folder;
  write_run(folder / "a", "first", 5000);
  const RunReader run(folder / "a");
  const Json loss = data_of(page_html({&run}))["runs"][0]["metrics"]["loss"];
  EXPECT_EQ(floats(loss["min"]).size(), 1250u);
  EXPECT_EQ(floats(loss["max"]), run.history().find("loss")->max);
  EXPECT_EQ(floats(loss["smooth"]).size(), 1250u);
}

TEST(Page, ForeignTextIsNoMarkup) {
  const test::ScratchDirectory folder;
  write_run(folder / "a", "</script><img src=x onerror=alert(1)>", 3);
  append(folder / "a/metrics.jsonl", "{\"step\":4,\"loss\":1,\"</script><s>\":2}\n");
  write_text(folder / "a/samples.jsonl", "{\"step\":2,\"prompt\":\"<i>\",\"answer\":\"</pre><script>\"}\n");
  append(folder / "a/events.jsonl", "{\"event\":\"warning\",\"key\":\"<u>\",\"count\":1}\n");
  const RunReader run(folder / "a");
  const std::string page = page_html({&run});
  for (const char* markup : {"<img", "<s>", "<i>", "</pre><script>", "<u>"})
    EXPECT_EQ(page.find(markup), std::string::npos) << markup;
  EXPECT_EQ(data_of(page)["runs"][0]["name"], "</script><img src=x onerror=alert(1)>");
}

TEST(Page, LiveDataContinuesAPage) {
  const test::ScratchDirectory folder;
  write_run(folder / "a", "first", 40);
  RunReader run(folder / "a");
  for (int64_t step = 41; step <= 45; ++step) append(folder / "a/metrics.jsonl", test::metrics_line(step));
  run.poll();
  const Json next = Json::parse(live_data(run, 40))["runs"][0];
  EXPECT_EQ(next["from"], 39);
  EXPECT_EQ(floats(next["metrics"]["loss"]["mean"]).size(), 6u);
  EXPECT_EQ(floats(next["metrics"]["loss"]["smooth"]).size(), 45u);
  EXPECT_EQ(Json::parse(live_data(run, 1000000))["runs"][0]["metrics"]["loss"]["mean"], "");
}

TEST(Page, TakesTimesThatAreNoDates) {
  const test::ScratchDirectory folder;
  write_run(folder / "a", "first", 10);
  for (const char* time : {"5e17", "253402300800", "1e300", "-1"})
    append(folder / "a/events.jsonl", "{\"event\":\"checkpoint\",\"time\":" + std::string(time) +
                                          ",\"step\":2,\"bytes\":1,\"seconds\":1e300,\"stall_seconds\":-1e300}\n");
  const RunReader run(folder / "a");
  EXPECT_HAS(page_html({&run}), "<html");
}

TEST(Page, OfARunWithoutStepsIsAPage) {
  const test::ScratchDirectory folder;
  std::filesystem::create_directory(folder / "a");
  write_text(folder / "a/run.json", "{}");
  const RunReader run(folder / "a");
  EXPECT_HAS(page_html({&run}), "<h1>a</h1>");
  EXPECT_HAS(summary_text(run, {}), "a  at step 0");
}

}  // namespace
}  // namespace chassis
