//! Kind "rows": `chassis/kind/rows.h` has the contract of every function.
use crate::error::{Error, Result};
use crate::guard::catch;
use crate::host::{bytes_of, text_of};
use crate::member::{Instance, Kind, Member};
use crate::sized::{read_sized, write_sized};
use crate::sys;
use std::ffi::{OsStr, c_void};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub const KIND: Kind = Kind { name: "rows", min_host_minor: sys::CHASSIS_ABI_OLDEST_MINOR };

/// A member that reads files of rows, which the manifest line "file=*.csv" names. Several files may be open at once.
pub trait Rows: Member {
    type File: RowFile;

    /// \[any\] NotFound: there is no such file; InvalidArgument: it is another kind of file, or has values that JSON
    /// cannot hold; DataLoss: it is truncated or damaged.
    fn open(&self, path: &Path) -> Result<Self::File>;
}

/// An open file, used by one thread at a time. Messages name columns, not the file or the row.
pub trait RowFile: Send + 'static {
    /// None: not known before the end.
    fn num_rows(&self) -> Option<u64> {
        None
    }
    /// Gives at least 1 and at most `max_rows` rows, or none at the end. After an error it is not called again.
    fn next(&mut self, max_rows: u64, out: &mut RowSink<'_>) -> Result<()>;
    /// The bytes of the file that all rows so far came from; never decreases.
    fn num_bytes_read(&self) -> u64;
}

/// Receives rows in the order of the file.
pub struct RowSink<'a> {
    at: *const sys::chassis_row_sink_t,
    row: unsafe extern "C" fn(*const sys::chassis_row_sink_t, sys::chassis_str_t),
    num_rows: u64,
    call: PhantomData<&'a ()>,
}

impl RowSink<'_> {
    /// One JSON object.
    pub fn row(&mut self, json: &str) {
        // SAFETY: the sink is valid for the call of `next` that this borrows from.
        unsafe { (self.row)(self.at, bytes_of(json.as_bytes())) };
        self.num_rows += 1;
    }
}

/// For `plugin!`.
///
/// # Safety
/// `host` outlives the instance.
#[doc(hidden)]
pub unsafe fn create<T: Rows>(host: *const sys::chassis_host_t) -> Result<*mut sys::chassis_instance_t> {
    // SAFETY: the caller's promise.
    unsafe { Instance::<T>::create(host, Table::<T>::get_interface) }
}

struct Table<T>(PhantomData<T>);

type This = *mut sys::chassis_instance_t;
type Status = *mut sys::chassis_status_t;

impl<T: Rows> Table<T> {
    const TABLE: sys::chassis_rows_t = sys::chassis_rows_t {
        struct_size: size_of::<sys::chassis_rows_t>() as u32,
        reserved0: 0,
        open: Some(Self::open),
        next: Some(Self::next),
        close: Some(Self::close),
    };

    unsafe extern "C" fn get_interface(_: *const sys::chassis_instance_t, id: sys::chassis_str_t) -> *const c_void {
        // SAFETY: the text is borrowed for the call.
        if unsafe { text_of(&id) } == sys::CHASSIS_ROWS_ID.as_bytes() {
            std::ptr::from_ref(const { &Self::TABLE }).cast()
        } else {
            std::ptr::null()
        }
    }

    // SAFETY of all below: the host passes the instance that the table belongs to, borrows its arguments for the call,
    // and calls functions of one file one after the other.

    unsafe extern "C" fn open(
        this: This,
        path: sys::chassis_str_t,
        out: *mut sys::chassis_row_file_info_t,
        file: *mut *mut c_void,
    ) -> Status {
        unsafe {
            Instance::<T>::call(this, |rows| {
                let opened = rows.open(Path::new(OsStr::from_bytes(text_of(&path))))?;
                let num_rows = opened.num_rows().map_or(-1, |n| n as i64);
                write_sized(&sys::chassis_row_file_info_t { struct_size: 0, reserved0: 0, num_rows }, out)?;
                *file = Box::into_raw(Box::new(opened)).cast();
                Ok(())
            })
        }
    }

    unsafe extern "C" fn next(
        this: This,
        file: *mut c_void,
        max_rows: u64,
        sink: *const sys::chassis_row_sink_t,
        out: *mut sys::chassis_rows_read_t,
    ) -> Status {
        unsafe {
            Instance::<T>::call(this, |_| {
                let opened = &mut *file.cast::<T::File>();
                let row = read_sized(sink)?.row.ok_or_else(|| Error::invalid("a row sink without row"))?;
                let mut rows = RowSink { at: sink, row, num_rows: 0, call: PhantomData };
                opened.next(max_rows, &mut rows)?;
                let (num_rows, num_bytes) = (rows.num_rows, opened.num_bytes_read());
                write_sized(&sys::chassis_rows_read_t { struct_size: 0, reserved0: 0, num_rows, num_bytes }, out)
            })
        }
    }

    unsafe extern "C" fn close(_: This, file: *mut c_void) {
        // There is no way to report a panic of a destructor.
        let _ = catch(|| drop(unsafe { Box::from_raw(file.cast::<T::File>()) }));
    }
}
