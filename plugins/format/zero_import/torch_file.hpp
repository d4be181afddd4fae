// A file of torch.save: a ZIP of a pickle, data.pkl, and one member data/<key> for each storage. The pickle is compared
// with its CRC-32; storages are not read here, and their CRC-32s are not checked.
#pragma once

#include <unordered_map>

#include "pickle.hpp"
#include "zip.hpp"

namespace zero_import {

class TorchFile {
 public:
  // Throws a Defect that names the file.
  TorchFile(const Source& source, uint32_t file);

  uint32_t file() const { return file_; }
  const std::string& path() const { return path_; }
  const Pickle& pickle() const { return pickle_; }
  const Value& root() const { return pickle_.root(); }

  // The offset of a tensor's bytes in the file. Throws a Defect if its storage is missing or has another size.
  uint64_t offset_of(const TensorInfo& tensor) const;
  uint32_t dtype_of(const TensorInfo& tensor) const { return pickle_.storage(tensor.storage).dtype; }

  [[noreturn]] void fail(const std::string& what) const { throw Defect(path_ + ": " + what); }

 private:
  uint32_t file_;
  std::string path_;
  std::string folder_;  // of the members, with a slash at the end
  std::unordered_map<std::string, ZipMember> members_;
  Pickle pickle_;
};

}  // namespace zero_import
