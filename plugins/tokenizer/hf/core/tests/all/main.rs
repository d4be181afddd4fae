//! Tests of the crate through its interface. tests/golden has the results of transformers for the same files; it is
//! written by tests/interop/make_tokenizer_golden.py.
mod conversations;
mod costs;
mod directories;
mod ids;
mod limits;
mod spans;
mod training;

use chassis_hf_core::Tokenizer;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name)).unwrap()).unwrap()
}

fn open(name: &str) -> Tokenizer {
    Tokenizer::open(&golden(name)).unwrap()
}

/// A folder of files that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Folder {
        let path = std::env::temp_dir().join(format!("chassis-hf-{}-{name}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder(path);
        files.iter().for_each(|(name, content)| folder.write(name, content));
        folder
    }

    /// A copy of golden files, some of which a test can change.
    fn of_golden(name: &str, golden_name: &str) -> Folder {
        let folder = Folder::new(name, &[]);
        for entry in std::fs::read_dir(golden(golden_name)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, folder.0.join(path.file_name().unwrap())).unwrap();
        }
        folder
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn error(&self) -> chassis_hf_core::Error {
        Tokenizer::open(&self.0).err().expect("an error")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
