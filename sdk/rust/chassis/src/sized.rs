//! Structs of the other side, which may have another minor: `chassis/abi.h` has the rules.
use crate::error::{Error, Result};
use crate::sys::Growable;
use std::mem::{MaybeUninit, size_of};

/// A copy of `theirs`, in which members that its writer did not know are zero.
///
/// # Safety
/// `theirs` points to a struct that begins with its size.
pub(crate) unsafe fn read_sized<T: Growable>(theirs: *const T) -> Result<T> {
    let mut ours = MaybeUninit::<T>::zeroed();
    // SAFETY: reads and writes no further than both structs reach; zero bytes are a valid T.
    unsafe {
        let size = theirs.cast::<u32>().read() as usize;
        if size < T::FIRST_SIZE {
            return Err(Error::invalid(format!("a {} of {size} bytes, expected at least {}", T::NAME, T::FIRST_SIZE)));
        }
        let known = size.min(size_of::<T>());
        ours.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(theirs.cast(), known);
        ours.as_mut_ptr().cast::<u32>().write(known as u32);
        Ok(ours.assume_init())
    }
}

/// Writes all members but struct_size, which the reader has set.
///
/// # Safety
/// `theirs` points to a writable struct that begins with its size.
pub(crate) unsafe fn write_sized<T: Growable>(ours: &T, theirs: *mut T) -> Result<()> {
    // SAFETY: as above; `ours` is copied whole but for its first member.
    unsafe {
        let size = theirs.cast::<u32>().read() as usize;
        if size < T::FIRST_SIZE {
            return Err(Error::invalid(format!("a {} of {size} bytes, expected at least {}", T::NAME, T::FIRST_SIZE)));
        }
        let known = size.min(size_of::<T>());
        let from: *const u8 = std::ptr::from_ref(ours).cast();
        theirs.cast::<u8>().add(4).copy_from_nonoverlapping(from.add(4), known - 4);
    }
    Ok(())
}
