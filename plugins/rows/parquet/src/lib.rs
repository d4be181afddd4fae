// The member "parquet" of kind rows: each row of a Parquet file as one JSON object.
mod file;
mod json;
mod shape;
mod time;

use chassis::rows::Rows;
use chassis::{Host, Member, Opt, Result};
use std::collections::HashSet;
use std::path::Path;

struct Parquet {
    columns: HashSet<String>, // empty: all
}

impl Member for Parquet {
    const DOC: &'static str = "rows of Parquet files, as JSON objects";
    const OPTIONS: &'static [Opt] = &[Opt::string("columns")
        .default("\"\"")
        .doc("columns that are read, one a line; the others are null without being read; empty: all")];

    fn create(host: Host) -> Result<Self> {
        Ok(Parquet { columns: host.option_str("columns")?.lines().map(String::from).collect() })
    }
}

impl Rows for Parquet {
    type File = file::ParquetFile;

    fn open(&self, path: &Path) -> Result<Self::File> {
        file::ParquetFile::open(path, &self.columns)
    }
}

chassis::plugin! {
    rows: Parquet;
    "file=*.parquet", "requires=chassis.options/1", "swappable=1", "license=Apache-2.0"
}
