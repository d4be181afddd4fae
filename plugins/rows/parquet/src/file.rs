// An open file: one reader per column, which steps through the row groups one after another. Each column reads its own
// pages, so memory is bounded by a page and some values of each column.
use crate::json::{put_name, put_value};
use crate::shape::{shape_of, Shape};
use bytes::Bytes;
use chassis::rows::{RowFile, RowSink};
use chassis::{Code, Error, Result};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::PageReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, FileReader, Length, RowGroupReader, SerializedFileReader};
use parquet::record::reader::{ReaderIter, RowIter, TreeBuilder};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;

// Values that a column reads ahead, in bytes and rows.
const BATCH_BYTES: i64 = 2 << 20;
const MAX_BATCH_ROWS: i64 = 1024;

const MAGIC: &[u8] = b"PAR1";
const ENCRYPTED_MAGIC: &[u8] = b"PARE";
const MIN_FILE_BYTES: u64 = 12; // magic, length of the footer, magic

pub struct ParquetFile {
    reader: SerializedFileReader<Source>,
    columns: Vec<Column>,
    num_bytes: u64,
    next_group: usize,
    rows_left: u64, // of the current row group
    group: Progress,
    json: String,
}

// A column of the table, which may be nested.
struct Column {
    name: String,
    used: Option<UsedColumn>, // if none, nothing of it is read, and its values are null
}

struct UsedColumn {
    shape: Shape,
    schema: SchemaDescPtr, // of this column alone
    leaves: Range<usize>,  // its columns in the file
    values: Option<ReaderIter>,
}

// A row group restricted to the leaves of one column, since the crate's readers look at all leaves of a group.
struct ColumnGroup<'a> {
    group: &'a dyn RowGroupReader,
    metadata: RowGroupMetaData,
    first: usize,
}

impl RowGroupReader for ColumnGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        &self.metadata
    }
    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }
    fn get_column_page_reader(&self, i: usize) -> parquet::errors::Result<Box<dyn PageReader>> {
        self.group.get_column_page_reader(self.first + i)
    }
    fn get_column_bloom_filter(&self, i: usize) -> Option<&Sbbf> {
        self.group.get_column_bloom_filter(self.first + i)
    }
    fn get_row_iter(&self, _: Option<Type>) -> parquet::errors::Result<RowIter<'_>> {
        Err(ParquetError::NYI("rows of a column".into()))
    }
}

impl UsedColumn {
    fn open(&self, group: &dyn RowGroupReader) -> parquet::errors::Result<ReaderIter> {
        let leaves = group.metadata().columns().get(self.leaves.clone());
        let leaves = leaves.ok_or_else(|| ParquetError::General("the row group lacks the column".into()))?.to_vec();
        let num_rows = group.metadata().num_rows();
        let builder = RowGroupMetaData::builder(self.schema.clone()).set_num_rows(num_rows);
        let metadata = builder.set_column_metadata(leaves).build()?;
        let batch = batch_rows(&metadata);
        let alone = ColumnGroup { group, metadata, first: self.leaves.start };
        TreeBuilder::new().with_batch_size(batch).as_iter(self.schema.clone(), &alone)
    }
}

// The current row group: its offset in the file, its bytes and its rows.
#[derive(Default)]
struct Progress {
    begin: u64,
    num_bytes: u64,
    num_rows: u64,
}

impl ParquetFile {
    /// `used`: the columns to read; empty: all.
    pub fn open(path: &Path, used: &HashSet<String>) -> Result<Self> {
        let file = File::open(path).map_err(io_error)?;
        let num_bytes = file.metadata().map_err(io_error)?.len();
        check_magic(&file, num_bytes)?;
        let source = Source { file: Arc::new(file), num_bytes };
        let reader = caught(|| SerializedFileReader::new(source))
            .map_err(|broken| damaged(format!("its footer cannot be read: {}", broken.text)))?;
        check_num_rows(&reader)?;
        let schema = reader.metadata().file_metadata().schema_descr();
        let columns = caught(|| Ok(columns_of(schema, used)))
            .map_err(|broken| damaged(format!("its schema cannot be read: {}", broken.text)))??;
        Ok(ParquetFile {
            reader,
            columns,
            num_bytes,
            next_group: 0,
            rows_left: 0,
            group: Progress::default(),
            json: String::new(),
        })
    }

    // Returns false after the last row group.
    fn open_group(&mut self) -> Result<bool> {
        while self.rows_left == 0 {
            if self.next_group == self.reader.num_row_groups() {
                return Ok(false);
            }
            let number = self.next_group;
            self.next_group += 1;
            let at = Cell::new("");
            let columns = &mut self.columns;
            let reader = &self.reader;
            let opened = caught(|| {
                let group = reader.get_row_group(number)?;
                let num_rows = group.metadata().num_rows();
                for Column { name, used } in columns.iter_mut() {
                    at.set(name);
                    if let Some(column) = used {
                        column.values = Some(column.open(&*group)?);
                    }
                }
                Ok((num_rows, group.metadata().compressed_size()))
            });
            let (num_rows, num_bytes) = opened.map_err(|broken| broken.of_column(at.get()))?;
            let Ok(num_rows) = u64::try_from(num_rows) else {
                return Err(damaged(format!("row group {number} has {num_rows} rows")));
            };
            let begin = (self.group.begin + self.group.num_bytes).min(self.num_bytes);
            let num_bytes = u64::try_from(num_bytes).unwrap_or(0).min(self.num_bytes - begin);
            self.group = Progress { begin, num_bytes, num_rows };
            self.rows_left = num_rows;
        }
        Ok(true)
    }

    fn read_row(&mut self) -> Result<()> {
        let at = Cell::new("");
        let (columns, json) = (&mut self.columns, &mut self.json);
        json.clear();
        let read = caught(|| {
            for Column { name, used } in columns.iter_mut() {
                at.set(name);
                json.push(if json.is_empty() { '{' } else { ',' });
                put_name(name, json);
                let Some(column) = used else {
                    json.push_str("null");
                    continue;
                };
                let row = column.values.as_mut().and_then(Iterator::next);
                let row = row.ok_or_else(|| ParquetError::EOF("the column has no more values".into()))??;
                let Some((_, value)) = row.into_columns().pop() else {
                    return Err(ParquetError::General("a row without a value".into()));
                };
                if let Err(refusal) = put_value(&value, &column.shape, json) {
                    return Ok(Err(refusal));
                }
            }
            Ok(Ok(()))
        });
        read.map_err(|broken| broken.of_column(at.get()))??;
        self.json.push('}');
        Ok(())
    }
}

impl RowFile for ParquetFile {
    fn num_rows(&self) -> Option<u64> {
        u64::try_from(self.reader.metadata().file_metadata().num_rows()).ok()
    }

    fn next(&mut self, max_rows: u64, out: &mut RowSink<'_>) -> Result<()> {
        for _ in 0..max_rows {
            if !self.open_group()? {
                break;
            }
            self.read_row()?;
            out.row(&self.json);
            self.rows_left -= 1;
        }
        Ok(())
    }

    fn num_bytes_read(&self) -> u64 {
        if self.rows_left == 0 && self.next_group == self.reader.num_row_groups() {
            return self.num_bytes;
        }
        let Progress { begin, num_bytes, num_rows } = self.group;
        let done = num_rows - self.rows_left;
        begin + (num_bytes as u128 * done as u128 / num_rows.max(1) as u128) as u64
    }
}

fn check_num_rows(reader: &SerializedFileReader<Source>) -> Result<()> {
    let num_rows = i128::from(reader.metadata().file_metadata().num_rows());
    let of_groups: i128 = reader.metadata().row_groups().iter().map(|group| i128::from(group.num_rows())).sum();
    if num_rows != of_groups {
        return Err(damaged(format!("its footer says {num_rows} rows, and its row groups have {of_groups}")));
    }
    Ok(())
}

fn columns_of(schema: &SchemaDescriptor, used: &HashSet<String>) -> Result<Vec<Column>> {
    let root = schema.root_schema();
    let mut columns: Vec<Column> = Vec::new();
    let mut names = HashSet::new();
    let mut first = 0;
    for (number, field) in root.get_fields().iter().enumerate() {
        let name = field.name().to_owned();
        if !names.insert(field.name()) {
            return Err(Error::invalid(format!("two columns have the name '{name}'")));
        }
        let mut end = first;
        while end < schema.num_columns() && schema.get_column_root_idx(end) == number {
            end += 1;
        }
        let leaves = std::mem::replace(&mut first, end)..end;
        if !used.is_empty() && !used.contains(&name) {
            columns.push(Column { name, used: None });
            continue;
        }
        let shape = shape_of(field, &name)?;
        let alone = Type::group_type_builder(root.name()).with_fields(vec![field.clone()]).build();
        let alone = alone.map_err(|error| damaged(text_of(&error)))?;
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(alone)));
        columns.push(Column { name, used: Some(UsedColumn { shape, schema, leaves, values: None }) });
    }
    if columns.is_empty() {
        return Err(Error::invalid("the table has no columns"));
    }
    Ok(columns)
}

// The number of rows to read ahead: fewer if rows are long.
fn batch_rows(group: &RowGroupMetaData) -> usize {
    let num_bytes: i64 = group.columns().iter().map(|c| c.uncompressed_size().max(0)).fold(0, i64::saturating_add);
    let bytes_of_row = num_bytes / group.num_rows().max(1);
    (BATCH_BYTES / bytes_of_row.max(1)).clamp(1, MAX_BATCH_ROWS) as usize
}

fn check_magic(file: &File, num_bytes: u64) -> Result<()> {
    let mut head = [0; 4];
    let mut tail = [0; 4];
    let known = head.len().min(num_bytes as usize);
    file.read_exact_at(&mut head[..known], 0).map_err(io_error)?;
    if num_bytes == 0 {
        return Err(damaged("the file is empty".into()));
    }
    let is_encrypted = head == ENCRYPTED_MAGIC;
    if !is_encrypted && !MAGIC.starts_with(&head[..known]) {
        return Err(Error::invalid(format!(
            "this is not a Parquet file: it begins with \"{}\", not with \"PAR1\"",
            head[..known].escape_ascii()
        )));
    }
    if num_bytes < MIN_FILE_BYTES {
        return Err(damaged(format!(
            "the file is truncated: it has {num_bytes} bytes, and the shortest Parquet file has {MIN_FILE_BYTES}"
        )));
    }
    file.read_exact_at(&mut tail, num_bytes - MAGIC.len() as u64).map_err(io_error)?;
    if is_encrypted || tail == ENCRYPTED_MAGIC {
        return Err(Error::invalid("the file is encrypted, which is not supported"));
    }
    if tail != MAGIC {
        return Err(damaged(format!(
            "the file is truncated or damaged: after {num_bytes} bytes it ends with \"{}\", not with \"PAR1\"",
            tail.escape_ascii()
        )));
    }
    Ok(())
}

// A failure of the crate parquet, as a text: an error, or a panic at bytes that it did not expect.
struct Broken {
    text: String,
    is_unsupported: bool,
}

impl Broken {
    fn of_column(self, column: &str) -> Error {
        let of = if column.is_empty() { String::new() } else { format!("column '{column}': ") };
        if self.is_unsupported {
            return Error::invalid(format!("{of}{}", self.text));
        }
        damaged(format!("{of}it cannot be read: {}", self.text))
    }
}

fn caught<T>(body: impl FnOnce() -> std::result::Result<T, ParquetError>) -> std::result::Result<T, Broken> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Broken { text: text_of(&error), is_unsupported: matches!(error, ParquetError::NYI(_)) }),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned();
            Err(Broken { text: shortened(text), is_unsupported: false })
        }
    }
}

fn text_of(error: &ParquetError) -> String {
    shortened(match error {
        ParquetError::General(text) | ParquetError::NYI(text) | ParquetError::EOF(text) => text.clone(),
        ParquetError::External(error) => error.to_string(),
        other => other.to_string(),
    })
}

// A message of the crate may contain a whole value.
fn shortened(mut text: String) -> String {
    const MAX_BYTES: usize = 200;
    if text.starts_with("Error reading BYTE_ARRAY as String") {
        return "a text is not UTF-8".into();
    }
    if text.len() > MAX_BYTES {
        let end = (0..=MAX_BYTES).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn damaged(message: String) -> Error {
    Error::new(Code::DataLoss, message)
}

fn io_error(error: std::io::Error) -> Error {
    let code = if error.kind() == ErrorKind::NotFound { Code::NotFound } else { Code::DataLoss };
    Error::new(code, format!("the file cannot be read: {error}"))
}

// The bytes of the file. Each reader has its own offset, since columns read in turn.
struct Source {
    file: Arc<File>,
    num_bytes: u64,
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.num_bytes
    }
}

impl ChunkReader for Source {
    type T = BufReader<ReadAt>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(ReadAt { file: self.file.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        // This check also keeps a damaged length from allocating memory.
        if start.checked_add(length as u64).is_none_or(|end| end > self.num_bytes) {
            let message = format!("{length} bytes from byte {start} on, the file has {}", self.num_bytes);
            return Err(ParquetError::EOF(message));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

struct ReadAt {
    file: Arc<File>,
    at: u64,
}

impl Read for ReadAt {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let num_bytes = self.file.read_at(out, self.at)?;
        self.at += num_bytes as u64;
        Ok(num_bytes)
    }
}
