// The plugin parquet, through its table: the rows of files that pyarrow wrote, and every kind of damage.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "chassis/kind/rows.h"
#include "tests/support/fake_host.hpp"

namespace {

const std::string kGolden = CHASSIS_TEST_SOURCE_DIR "/tests/golden/parquet/";

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct Read {
  std::vector<std::string> rows;
  std::vector<uint64_t> num_bytes;  // after each call
  int64_t num_rows = -1;
  int32_t code = CHASSIS_OK;
  std::string message;  // empty: no error
};

class Parquet : public testing::Test {
 protected:
  Parquet() {
    std::string name = (std::filesystem::temp_directory_path() / "chassis-parquet-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~Parquet() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& bytes) const {
    const std::string path = folder_ + "/a.parquet";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  Read read(const std::string& path, uint64_t max_rows = 100, const fake::Instance* other = nullptr) const {
    const fake::Instance& instance = other ? *other : instance_;
    Read out;
    const auto failed = [&](chassis_status_t* status) {
      if (status == nullptr) return false;
      out.code = host_.table()->status_code(status);
      out.message = host_.message(status);
      return true;
    };
    chassis_row_file_info_t info{};
    info.struct_size = sizeof info;
    void* file = nullptr;
    if (failed(table_.open(instance.self(), fake::str(path), &info, &file))) return out;
    out.num_rows = info.num_rows;
    const chassis_row_sink_t sink = {
        sizeof sink, 0, &out.rows, [](const chassis_row_sink_t* self, chassis_str_t json) {
          static_cast<std::vector<std::string>*>(self->impl)->push_back(std::string(fake::text_of(json)));
        }};
    while (true) {
      chassis_rows_read_t given{};
      given.struct_size = sizeof given;
      const size_t before = out.rows.size();
      if (failed(table_.next(instance.self(), file, max_rows, &sink, &given))) break;
      EXPECT_EQ(out.rows.size() - before, given.num_rows);
      EXPECT_LE(given.num_rows, max_rows);
      out.num_bytes.push_back(given.num_bytes);
      if (given.num_rows == 0) break;
    }
    table_.close(instance.self(), file);
    return out;
  }

  // A refusal has a code that the host can tell the user, for the user's mistake or for damage, and a message.
  static void expect_refusal(const Read& out, const std::string& what) {
    EXPECT_TRUE(out.code == CHASSIS_INVALID_ARGUMENT || out.code == CHASSIS_DATA_LOSS) << what << ": " << out.code;
    EXPECT_FALSE(out.message.empty()) << what;
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/parquet.so"};
  fake::Instance instance_{host_, plugin_, "rows", "parquet", {}};
  const chassis_rows_t& table_ = instance_.interface<chassis_rows_t>(CHASSIS_ROWS_ID);
  std::string folder_;
};

TEST_F(Parquet, GivesTheRowsAsTheReferenceWritesThemInJson) {
  const std::vector<std::string> expected = lines_of(kGolden + "reference.jsonl");
  ASSERT_EQ(expected.size(), 3u);
  for (const uint64_t max_rows : {1, 2, 100}) {
    const Read out = read(kGolden + "reference.parquet", max_rows);
    EXPECT_EQ(out.message, "");
    EXPECT_EQ(out.rows, expected);
    EXPECT_EQ(out.num_rows, 3);
    EXPECT_TRUE(std::is_sorted(out.num_bytes.begin(), out.num_bytes.end()));
    EXPECT_EQ(out.num_bytes.back(), std::filesystem::file_size(kGolden + "reference.parquet"));
  }
}

TEST_F(Parquet, ReadsOnlyTheColumnsThatAreAskedFor) {
  const fake::Instance instance{host_, plugin_, "rows", "parquet", {{"columns", "\"completion\nnone\nmargin\n\""}}};
  const Read out = read(kGolden + "reference.parquet", 100, &instance);
  ASSERT_EQ(out.rows.size(), 3u) << out.message;
  EXPECT_EQ(out.rows[0],
            R"({"messages":null,"prompt":null,"completion":"4","chosen":null,"rejected":null,"input_ids":null,)"
            R"("margin":0.5,"ratio":null,"flag":null,"count":null,"price":null,"day":null,"time":null,"at":null,)"
            R"("local":null,"nested":null,"point":null,"scores":null,"bytes":null,"nothing":null})");
  // Damage to another column is not noticed.
  std::string bytes = content_of(kGolden + "reference.parquet");
  const size_t at = bytes.find("Be brief.");
  ASSERT_NE(at, std::string::npos);
  bytes[at - 4] = '\xff';
  EXPECT_EQ(read(write(bytes), 100, &instance).rows, out.rows);
}

TEST_F(Parquet, ReadsFilesInSeveralThreadsAtOnce) {
  const std::vector<std::string> expected = lines_of(kGolden + "reference.jsonl");
  std::array<bool, 4> same{};
  std::vector<std::thread> threads;
  for (bool& mine : same) {
    threads.emplace_back([&, out = &mine] {
      *out = true;
      for (int i = 0; i < 20; ++i) *out = *out && read(kGolden + "reference.parquet", 1).rows == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, (std::array<bool, 4>{true, true, true, true}));
}

TEST_F(Parquet, RefusesAnotherKindOfFile) {
  const Read text = read(kGolden + "reference.jsonl");
  EXPECT_EQ(text.code, CHASSIS_INVALID_ARGUMENT);
  EXPECT_EQ(text.message, "this is not a Parquet file: it begins with \"{\\\"me\", not with \"PAR1\"");
  const Read encrypted = read(write("PARE................PARE"));
  EXPECT_EQ(encrypted.code, CHASSIS_INVALID_ARGUMENT);
  EXPECT_EQ(encrypted.message, "the file is encrypted, which is not supported");
  EXPECT_EQ(read(folder_ + "/none.parquet").code, CHASSIS_NOT_FOUND);
  expect_refusal(read(folder_), "a folder");
}

TEST_F(Parquet, FindsATruncatedFileWhereverItEnds) {
  const std::string whole = content_of(kGolden + "reference.parquet");
  EXPECT_EQ(read(write("")).message, "the file is empty");
  EXPECT_EQ(read(write("PAR1")).message, "the file is truncated: it has 4 bytes, and the shortest Parquet file has 12");
  for (size_t size = 0; size < whole.size(); size += size < 16 ? 1 : 61) {
    const Read out = read(write(whole.substr(0, size)));
    EXPECT_EQ(out.code, CHASSIS_DATA_LOSS) << size << " bytes";
    EXPECT_TRUE(out.rows.empty());
  }
}

TEST_F(Parquet, NamesTheColumnOfADamagedPage) {
  std::string bytes = content_of(kGolden + "reference.parquet");
  // The text "Hallo." of column completion in the first row group.
  const size_t at = bytes.find("Hallo.", bytes.find("Hallo.") + 1);
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  const Read out = read(write(bytes));
  EXPECT_EQ(out.code, CHASSIS_DATA_LOSS);
  EXPECT_EQ(out.message.find("column 'completion': it cannot be read: "), 0u) << out.message;
}

// Includes damage at which the crate panics.
TEST_F(Parquet, RefusesDamageInWords) {
  const std::string whole = content_of(kGolden + "reference.parquet");
  const std::vector<std::string> expected = lines_of(kGolden + "reference.jsonl");
  size_t num_refused = 0;
  for (size_t at = 0; at < whole.size(); at += 13) {
    std::string bytes = whole;
    bytes[at] ^= static_cast<char>(1 << at % 8);
    const Read out = read(write(bytes));
    if (out.message.empty()) continue;  // such as a byte of the writer's name
    ++num_refused;
    expect_refusal(out, "byte " + std::to_string(at));
  }
  EXPECT_GT(num_refused, whole.size() / 13 / 2);
}

TEST_F(Parquet, ADamagedNumberOfRowsIsDamageOfTheFile) {
  const std::string whole = content_of(kGolden + "reference.parquet");
  size_t num_refused = 0;
  for (size_t at = whole.find("\x16\x06"); at != std::string::npos; at = whole.find("\x16\x06", at + 1)) {
    std::string bytes = whole;
    bytes[at + 1] = 8;  // 4 rows instead of 3, or some other number of the footer
    const Read out = read(write(bytes));
    if (out.message.find("its footer says 4 rows, and its row groups have 3") == 0) ++num_refused;
    if (out.message.empty()) {
      EXPECT_EQ(out.num_rows, static_cast<int64_t>(out.rows.size())) << "byte " << at;
    }
  }
  EXPECT_EQ(num_refused, 1u);
}

TEST_F(Parquet, NamesTheColumnOfBytesThatAreNoText) {
  const Read out = read(kGolden + "binary.parquet");
  EXPECT_EQ(out.rows, (std::vector<std::string>{R"({"text":"one","image":""})", R"({"text":"two","image":"ok"})"}));
  EXPECT_EQ(out.code, CHASSIS_INVALID_ARGUMENT);
  EXPECT_EQ(out.message, "column 'image' has binary data, which is not UTF-8 at byte 0 of 4; JSON holds only text");
}

}  // namespace
