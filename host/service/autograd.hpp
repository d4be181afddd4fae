// Whether the operators that a plugin calls on this thread are recorded by LibTorch's autograd. They are recorded only
// inside composed ops, which have no backward of their own.
#pragma once

namespace chassis {

bool autograd_recording();

class AutogradRecording {
 public:
  AutogradRecording();
  ~AutogradRecording();
  AutogradRecording(const AutogradRecording&) = delete;
  AutogradRecording& operator=(const AutogradRecording&) = delete;

 private:
  bool previous_;
};

}  // namespace chassis
