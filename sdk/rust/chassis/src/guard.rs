//! No panic crosses the boundary: it becomes a status with the panic's message and place.
use crate::error::{Code, Error, Result};
use crate::sys;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

/// A place in a source file. It has no destructor, since a thread-local with one keeps the library mapped.
#[derive(Clone, Copy)]
struct Place {
    file: [u8; 200], // its end
    len: usize,
    line: u32,
    column: u32,
}

impl Place {
    fn of(info: &PanicHookInfo<'_>) -> Option<Place> {
        let place = info.location()?;
        let name = place.file().as_bytes();
        let name = &name[name.len().saturating_sub(200)..];
        let mut file = [0; 200];
        file[..name.len()].copy_from_slice(name);
        Some(Place { file, len: name.len(), line: place.line(), column: place.column() })
    }

    fn text(&self) -> String {
        format!("{}:{}:{}", String::from_utf8_lossy(&self.file[..self.len]), self.line, self.column)
    }
}

thread_local! {
    static LAST: Cell<Option<Place>> = const { Cell::new(None) };
}
/// The place of the last panic of any thread, since a library's own threads pass on their panics without a place.
static LAST_OF_ALL: Mutex<Option<Place>> = Mutex::new(None);

/// Replaces the hook that prints panics on stderr by one that remembers their place. A cdylib has a standard library of
/// its own, so this concerns only this plugin.
pub(crate) fn remember_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = Place::of(info);
            LAST.set(place);
            *LAST_OF_ALL.lock().unwrap_or_else(PoisonError::into_inner) = place;
        }));
    });
}

/// Runs `body`, and returns an error or a panic as a status.
///
/// # Safety
/// `host` is the host of the call.
pub(crate) unsafe fn guard(
    host: *const sys::chassis_host_t,
    body: impl FnOnce() -> Result<()>,
) -> *mut sys::chassis_status_t {
    match catch(body).and_then(|result| result) {
        Ok(()) => std::ptr::null_mut(),
        // SAFETY: the caller's promise.
        Err(error) => unsafe { error.into_status(host) },
    }
}

/// Runs `body`, and returns a panic as an error. The state that a panic leaves behind is the plugin's own; a run ends
/// with the first error.
pub(crate) fn catch<T>(body: impl FnOnce() -> T) -> Result<T> {
    LAST.set(None); // of a panic that the plugin itself caught
    catch_unwind(AssertUnwindSafe(body)).map_err(panicked)
}

fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let message = match payload.downcast_ref::<&str>() {
        Some(text) => (*text).to_owned(),
        None => payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "a value that is not text".into()),
    };
    drop_payload(payload);
    let mut all = LAST_OF_ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let place = LAST.take().or(all.take()).map_or_else(|| "an unknown place".into(), |place| place.text());
    Error::new(Code::Internal, format!("panicked at {place}: {message}"))
}

/// The destructor of a payload may panic too, with a payload of its own; after a few of them the last one is leaked.
fn drop_payload(mut payload: Box<dyn Any + Send>) {
    for _ in 0..4 {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(next) => payload = next,
        }
    }
    std::mem::forget(payload);
}
