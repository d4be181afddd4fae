// Work that is done again, such as a plan of the run that makes it, says nothing twice.
#pragma once

namespace chassis::log {

// While it lives, counted warnings of this thread are neither logged nor counted.
class MuteWarnings {
 public:
  MuteWarnings();
  ~MuteWarnings();
  MuteWarnings(const MuteWarnings&) = delete;
  MuteWarnings& operator=(const MuteWarnings&) = delete;

 private:
  const bool before_;
};

}  // namespace chassis::log
