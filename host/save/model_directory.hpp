// The parameters of a session in a directory: a model's, a checkpoint's, or an adapter's.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/checkpoint/reader.hpp"
#include "host/save/adapter_files.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The session's parameters that a directory is expected to have.
enum class Content {
  kModel,    // those of the model
  kAll,      // also those that an adapter added
  kTrained,  // only what is_kept(): a checkpoint of contents = "trained"
  kAdapter,  // the same, in an adapter's files
};

// The key in "about" of a checkpoint with the names by which DiskLayout::forms_in() finds the forms of its model.
inline constexpr char kSpelling[] = "spelling";
// The forms of the files of a model directory or, of a checkpoint, of the model that it was trained from.
DiskForms forms_of_files(const DiskLayout& mapping, const CheckpointReader& reader);

class ModelDirectory {
 public:
  // `is_adapter`: its files are those of an adapter. Both arguments must outlive it.
  ModelDirectory(const Session& session, const CheckpointReader& reader, bool is_adapter = false);

  Content content() const { return content_; }
  bool has(const Parameter& p) const;
  std::vector<StoredPart> parts(const Descriptor& parameter) const;
  LoadTensor load_tensor(Descriptor parameter) const;
  // Throws a storage error if files hold a second copy of a shared parameter with another shape or, if `with_values`,
  // with other values, which are read.
  void compare_tied_copies(CheckpointReader& reader, bool with_values = true) const;
  // Throws a storage error if the head of scores has a bias that is not 0, which is read.
  void refuse_biases(CheckpointReader& reader) const;
  // Tensors of the directory that hold what the objective does not need, such as lm_head.weight.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // The forms of a model's files; of a checkpoint, those of the model that it was trained from.
  const DiskForms& forms() const { return forms_; }
  // Whether loading may ignore a tensor of this name.
  std::function<bool(const std::string& name)> skip() const;

 private:
  void read_model(const Session& session, const CheckpointReader& reader);
  void read_adapter(const Session& session, const CheckpointReader& reader);
  // Finds the head of scores under the names that other programs give it. Returns the name of its weight; empty if
  // there is none, or if the session has no such head.
  std::string read_head(const CheckpointReader& reader);
  bool leaves_out(const std::string& in_file) const;
  bool is_literal(const DiskTensor& tensor, const std::string& name, const CheckpointReader& reader) const;

  const ParameterTable& parameters_;
  Content content_ = Content::kModel;
  const DiskLayout* mapping_ = nullptr;                     // mapping of a model's files
  DiskForms forms_;
  std::map<std::string, std::vector<StoredPart>> adapter_;  // by parameter: its places in an adapter's files
  std::map<std::string, std::string> in_file_;            // by the mapping's name
  std::set<std::string> trained_;                         // trained parameters, if only the directory names them
  std::set<std::string> ignored_;
  std::vector<std::string> left_out_;
  std::vector<const DiskTensor*> biases_;                              // of the head
  std::vector<std::pair<const DiskTensor*, Descriptor>> tied_copies_;  // with the parameter that each must equal
};

}  // namespace chassis
