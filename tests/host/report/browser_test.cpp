// Pages as Chromium draws them: 1, 3 and 20 runs of 100 000 steps, at two widths, light and dark. The page says which
// charts it has drawn, and how long that took, which is printed.
#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <memory>

#include "host/base/file.hpp"
#include "host/report/page.hpp"
#include "tests/host/report/run_folder.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

std::string find_browser() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"})
    if (path_kind(path) == PathKind::kFile) return path;
  return "";
}

class Browser : public testing::TestWithParam<int> {};

TEST_P(Browser, DrawsAllCharts) {
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "Chromium is not installed";
  const int num_runs = GetParam();
  const test::ScratchDirectory folder;
  std::deque<RunReader> readers;
  std::vector<const RunReader*> runs;
  for (int i = 0; i < num_runs; ++i) {
    const std::string path = folder / ("run" + std::to_string(i));
    test::write_run(path, "run " + std::to_string(i), 100000, 0.05 * i);
    runs.push_back(&readers.emplace_back(path));
    std::filesystem::remove(path + "/metrics.jsonl");
  }
  const std::string page = folder / "page.html";
  test::write_text(page, page_html(runs));
  for (const int width : {400, 1600}) {
    for (const bool is_dark : {false, true}) {
      std::vector<std::string> command = {browser,
                                          "--headless",
                                          "--no-sandbox",
                                          "--disable-gpu",
                                          "--virtual-time-budget=20000",
                                          "--user-data-dir=" + (folder / "profile"),
                                          "--window-size=" + std::to_string(width) + ",2400",
                                          "--dump-dom"};
      if (is_dark) command.push_back("--blink-settings=preferredColorScheme=0");
      command.push_back("file://" + page);
      const std::string drawn = test::run_process(command, folder.path()).output;
      const auto attribute = [&](const std::string& name) {
        const size_t at = drawn.find(name + "=\"");
        if (at == std::string::npos) return std::string();
        const size_t begin = at + name.size() + 2;
        return drawn.substr(begin, drawn.find('"', begin) - begin);
      };
      // A line for each run, and with few runs the smoothed line and two edges.
      const int of_loss = num_runs <= 3 ? 4 * num_runs : num_runs;
      EXPECT_HAS(attribute("data-drawn"),
                 "loss:" + std::to_string(of_loss) + ",evaluation loss:" + std::to_string(num_runs));
      EXPECT_HAS(attribute("data-drawn"), "parts of a step, ms:");
      EXPECT_HAS(attribute("data-drawn"), "memory:");
      std::printf("%d runs, %d pixels, %s: drawn in %s ms, page of %.1f MB\n", num_runs, width,
                  is_dark ? "dark" : "light", attribute("data-drawn-ms").c_str(),
                  static_cast<double>(std::filesystem::file_size(page)) / 1e6);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Runs, Browser, testing::Values(1, 3, 20));

}  // namespace
}  // namespace chassis
