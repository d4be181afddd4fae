// Opens a file of torch.save, and locates the storages of its tensors.
#include "torch_file.hpp"

namespace zero_import {

TorchFile::TorchFile(const Source& source, uint32_t file) : file_(file), path_(source.files[file].path) {
  try {
    const ZipMember* pickle = nullptr;
    for (ZipMember& member : zip_members(source, file)) {
      const auto it = members_.emplace(member.name, member).first;
      constexpr std::string_view kPickle = "/data.pkl";
      if (!member.name.ends_with(kPickle) || member.name.find('/') != member.name.size() - kPickle.size()) continue;
      if (pickle != nullptr) throw Defect("there are two pickles in it");
      pickle = &it->second;
    }
    if (pickle == nullptr) throw Defect("there is no data.pkl in it: it was not made by torch.save");
    folder_ = pickle->name.substr(0, pickle->name.find('/') + 1);
    const auto order = members_.find(folder_ + "byteorder");
    if (order != members_.end() && order->second.num_bytes < 16 &&
        source.text(file, order->second.offset, order->second.num_bytes) != "little")
      throw Defect("its numbers are big-endian");
    if (pickle->num_bytes > kMaxPickleBytes)
      throw Defect("the pickle has " + std::to_string(pickle->num_bytes) + " bytes, at most " +
                   std::to_string(kMaxPickleBytes) + " are read");
    const std::string bytes = source.text(file, pickle->offset, pickle->num_bytes);
    if (crc32(bytes) != pickle->crc32)
      throw Defect("the pickle is damaged: its CRC-32 is not that of the ZIP directory");
    pickle_ = Pickle::parse(bytes);
  } catch (const Defect& defect) {
    throw Defect(path_ + ": " + defect.what());
  }
}

uint64_t TorchFile::offset_of(const TensorInfo& tensor) const {
  const StorageInfo& storage = pickle_.storage(tensor.storage);
  const auto it = members_.find(folder_ + "data/" + storage.key);
  if (it == members_.end()) fail("the storage " + shown(storage.key) + " is missing");
  const uint64_t num_bytes = storage.num_elements * dtype_bytes(storage.dtype);
  if (it->second.num_bytes != num_bytes)
    fail("the storage " + shown(storage.key) + " has " + std::to_string(it->second.num_bytes) +
         " bytes, the pickle says " + std::to_string(num_bytes));
  return it->second.offset + tensor.offset * dtype_bytes(storage.dtype);
}

}  // namespace zero_import
