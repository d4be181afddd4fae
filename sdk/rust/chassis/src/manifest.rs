//! The manifest note of a plugin, an ELF note that the host reads without loading the library. Made at compile time.
use crate::sys;

/// A note of section `.note.chassis`, whose text has N bytes, a multiple of 4.
#[repr(C)]
pub struct Note<const N: usize> {
    name_bytes: u32,
    text_bytes: u32,
    kind: u32,
    name: [u8; 8],
    text: [u8; N],
}

impl<const N: usize> Note<N> {
    pub const fn new(manifest: &Manifest) -> Self {
        let mut text = [0; N];
        manifest.write(&mut text);
        let name = *b"Chassis\0";
        Note { name_bytes: 8, text_bytes: N as u32, kind: sys::CHASSIS_NOTE_TYPE, name, text }
    }
}

pub struct Manifest {
    pub id: &'static str,
    pub version: &'static str,
    pub git: &'static str,
    /// The oldest host minor that its members work with.
    pub min_host_minor: u32,
    /// Kind and id.
    pub members: &'static [(&'static str, &'static str)],
    /// Further lines, such as "license=Apache-2.0".
    pub lines: &'static [&'static str],
}

impl Manifest {
    /// The size of the note's text.
    pub const fn size(&self) -> usize {
        self.write(&mut []).next_multiple_of(4)
    }

    /// Writes as much as there is room for, and returns the length of the text.
    const fn write(&self, out: &mut [u8]) -> usize {
        let mut at = put(out, 0, "chassis-manifest=1\nid=");
        at = put(out, at, self.id);
        at = put(out, at, "\nversion=");
        at = put(out, at, self.version);
        at = put(out, at, "\nabi=");
        at = put_abi(out, at, sys::CHASSIS_ABI_MINOR);
        at = put(out, at, "\nabi-min-host=");
        at = put_abi(out, at, self.min_host_minor);
        at = put(out, at, "\ntier=T0\n");
        let mut i = 0;
        while i < self.members.len() {
            let (kind, id) = self.members[i];
            at = put(out, at, "member=");
            at = put(out, at, kind);
            at = put(out, at, "/");
            at = put(out, at, id);
            at = put(out, at, "\n");
            i += 1;
        }
        if !self.git.is_empty() {
            at = put(out, at, "git=");
            at = put(out, at, self.git);
            at = put(out, at, "\n");
        }
        i = 0;
        while i < self.lines.len() {
            at = put(out, at, self.lines[i]);
            at = put(out, at, "\n");
            i += 1;
        }
        at
    }
}

const fn put(out: &mut [u8], at: usize, text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if at + i < out.len() {
            out[at + i] = bytes[i];
        }
        i += 1;
    }
    at + bytes.len()
}

const fn put_abi(out: &mut [u8], at: usize, minor: u32) -> usize {
    let at = put_number(out, at, sys::CHASSIS_ABI_MAJOR);
    let at = put(out, at, ".");
    put_number(out, at, minor)
}

const fn put_number(out: &mut [u8], at: usize, number: u32) -> usize {
    let at = if number >= 10 { put_number(out, at, number / 10) } else { at };
    if at < out.len() {
        out[at] = b'0' + (number % 10) as u8;
    }
    at + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: Manifest = Manifest {
        id: "words",
        version: "1.2.3",
        git: "",
        min_host_minor: 12,
        members: &[("tokenizer", "words")],
        lines: &["license=Apache-2.0"],
    };

    #[test]
    fn has_a_line_for_each_key_and_zeros_to_a_multiple_of_four() {
        let note: Note<{ MANIFEST.size() }> = Note::new(&MANIFEST);
        let text = std::str::from_utf8(&note.text).unwrap();
        let abi = sys::CHASSIS_ABI_MINOR;
        assert_eq!(
            text.trim_end_matches('\0'),
            format!(
                "chassis-manifest=1\nid=words\nversion=1.2.3\nabi=0.{abi}\nabi-min-host=0.12\ntier=T0\n\
                 member=tokenizer/words\nlicense=Apache-2.0\n"
            )
        );
        assert_eq!((text.len() % 4, note.text_bytes as usize), (0, text.len()));
        assert_eq!(size_of_val(&note), 20 + text.len());
    }
}
