// metrics.jsonl of a resumed run: which lines are kept, dropped or refused.
#include "host/train/metrics_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::ScratchDirectory;

std::string step_line(int64_t step) {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":5.5,\"grad_norm\":1.0,\"trained_tokens\":9}\n";
}
std::string evaluation_line(int64_t step) {
  return "{\"step\":" + std::to_string(step) + ",\"eval\":\"dev\",\"eval_loss\":5.5}\n";
}

MetricsScan scan(const std::string& text, int64_t last_step) {
  return scan_metrics(
      [&](void* out, size_t wanted, uint64_t offset) {
        const size_t got = std::min(wanted, text.size() - offset);
        std::memcpy(out, text.data() + offset, got);
        return got;
      },
      last_step);
}

TEST(MetricsScan, KeepsStepsAndEvaluationsUpToTheLastStep) {
  const std::string kept = step_line(1) + step_line(2) + evaluation_line(2);
  const MetricsScan found = scan(kept + step_line(3) + evaluation_line(3), 2);
  EXPECT_EQ(found.kept_bytes, kept.size());
  EXPECT_EQ(found.num_kept, 3u);
  EXPECT_EQ(found.num_dropped, 2u);
  EXPECT_EQ(found.first_dropped_step, 3);
  EXPECT_FALSE(found.holds_foreign());
}

TEST(MetricsScan, DamagedLinesAreKeptAndEndNothing) {
  const std::string too_large = "{\"step\":18446744073709551615,\"loss\":1,\"grad_norm\":1,\"trained_tokens\":1}\n";
  const std::string no_step = "{\"step\":null,\"loss\":1,\"grad_norm\":1,\"trained_tokens\":1}\n";
  const std::string kept = step_line(1) + "{\"step\": null}\n{\"step\": 1e400}\n\xff\xfe\n[1]\n" +
                           std::string(3'000'000, '[') + "\n" + too_large + no_step + step_line(2);
  const MetricsScan found = scan(kept + step_line(3), 2);
  EXPECT_EQ(found.kept_bytes, kept.size());
  EXPECT_EQ(found.num_kept, 2u);
  EXPECT_EQ(found.num_foreign_kept, 7u);
  EXPECT_EQ(found.first_foreign_line, 2u);
}

TEST(MetricsScan, ALastLineWithoutALineBreakIsKeptOnlyIfItIsComplete) {
  const std::string whole = step_line(1) + step_line(2);
  const MetricsScan found = scan(whole.substr(0, whole.size() - 1), 2);
  EXPECT_EQ(found.kept_bytes, whole.size() - 1);
  EXPECT_FALSE(found.kept_ends_line);
  for (const size_t cut : {size_t{1}, size_t{8}, size_t{20}}) {
    const MetricsScan cut_short = scan(whole + step_line(3).substr(0, cut), 9);
    EXPECT_EQ(cut_short.kept_bytes, whole.size()) << cut;
    EXPECT_TRUE(cut_short.drops_cut_short) << cut;
    EXPECT_EQ(cut_short.num_dropped, 0u) << cut;
  }
}

TEST(MetricsFile, ForeignFilesAndLinksAreRefusedAndStay) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  for (const std::string text : {"notes\n", "{\"step\": 1, \"my_loss\": 2}\n", "\n", "x", "{\"step\":1,"}) {
    test::write_text(path, text);
    try {
      open_metrics_file(path, 0);
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kStorage);
      EXPECT_HAS(e.what(), "metrics.jsonl' is in the way: line 1 is not a line of metrics");
    }
    EXPECT_EQ(test::text_of_file(path), text);
  }
  test::write_text(scratch / "target", step_line(1));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("target", path);
  EXPECT_THROW(open_metrics_file(path, 0), Error);
  EXPECT_EQ(test::text_of_file(scratch / "target"), step_line(1));
}

TEST(MetricsFile, NamesTheStepsAndLinesThatItDrops) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  test::write_text(path, step_line(1) + step_line(2) + step_line(3) + step_line(4).substr(0, 20));
  testing::internal::CaptureStderr();
  open_metrics_file(path, 1);
  log::flush();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "metrics.jsonl: the last line was cut short and is dropped\n"
            "metrics.jsonl: steps 2 to 3 (2 lines) are dropped, since the run continues from step 1\n");
  EXPECT_EQ(test::text_of_file(path), step_line(1));
}

TEST(MetricsFile, ForeignLinesAreCopiedBeforeTheyAreDropped) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl", kept = step_line(1) + step_line(2);
  const std::string text = kept + step_line(3) + "a note of mine\n" + step_line(4);
  test::write_text(path, text);
  EXPECT_EQ(open_metrics_file(path, 2).offset, kept.size());
  EXPECT_EQ(test::text_of_file(path), kept);
  EXPECT_EQ(test::text_of_file(path + ".old-1"), text);
  open_metrics_file(path, 1, false);
  EXPECT_EQ(test::text_of_file(path), step_line(1));
  EXPECT_EQ(test::text_of_file(path + ".old-2"), kept) << "it may be of another run";
  log::reset_counted_warnings();
}

}  // namespace
}  // namespace chassis
