// The member "parquet" of kind rows: each row of a Parquet file as one JSON object.
mod file;
mod json;
mod shape;
mod time;

use chassis::rows::Rows;
use chassis::{Host, Member, Result};
use std::path::Path;

struct Parquet;

impl Member for Parquet {
    const DOC: &'static str = "rows of Parquet files, as JSON objects";

    fn create(_host: Host) -> Result<Self> {
        Ok(Parquet)
    }
}

impl Rows for Parquet {
    type File = file::ParquetFile;

    fn open(&self, path: &Path) -> Result<Self::File> {
        file::ParquetFile::open(path)
    }
}

chassis::plugin! {
    rows: Parquet;
    "file=*.parquet", "swappable=1", "license=Apache-2.0"
}
