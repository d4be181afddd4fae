// The flag of each thread.
#include "host/service/autograd.hpp"

namespace chassis {
namespace {
thread_local bool recording = false;
}

bool autograd_recording() { return recording; }

AutogradRecording::AutogradRecording() : previous_(recording) { recording = true; }
AutogradRecording::~AutogradRecording() { recording = previous_; }

}  // namespace chassis
