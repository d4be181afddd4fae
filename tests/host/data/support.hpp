// Shared by the tests of host/data: a temporary folder, a tokenizer of bytes, and error messages.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/data/data_config.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "chassis-data-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    write_file_atomic(path, text);
    return path;
  }

 private:
  std::string path_;
};

// Ids are bytes; special tokens are above them.
class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(int32_t bos = -1, int32_t eos = 256, std::string fingerprint = "bytes",
                         std::string build = "")
      : bos_(bos), eos_(eos), fingerprint_(std::move(fingerprint)), build_(std::move(build)) {}
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    ids.clear();
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const int32_t> ids, bool = false) const override {
    std::string text;
    for (int32_t id : ids) {
      if (id < 256) text += static_cast<char>(id);
    }
    return text;
  }
  int64_t vocab_size() const override { return 258; }
  int32_t bos_id() const override { return bos_; }
  int32_t eos_id() const override { return eos_; }
  int32_t pad_id() const override { return -1; }
  std::string fingerprint() const override { return fingerprint_; }
  std::string build() const override { return build_; }

 private:
  int32_t bos_, eos_;
  std::string fingerprint_, build_;
};

inline DataSetConfig text_set(const std::string& path, DocumentSplit documents = DocumentSplit::kLine) {
  DataSetConfig set;
  set.path = path;
  set.documents = documents;
  set.key = "data.train.0";
  return set;
}

inline DataSetConfig token_set(const std::string& path) {
  DataSetConfig set = text_set(path);
  set.format = DataFormat::kTokens;
  return set;
}

// The message of the error; the test fails if there is none.
template <class F>
std::string error_of(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

}  // namespace chassis
