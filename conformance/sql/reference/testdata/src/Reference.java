import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonElement;
import com.google.gson.JsonPrimitive;
import com.google.zetasql.AnalyzerOptions;
import com.google.zetasql.LanguageOptions;
import com.google.zetasql.PreparedQuery;
import com.google.zetasql.SimpleCatalog;
import com.google.zetasql.SimpleColumn;
import com.google.zetasql.StructType;
import com.google.zetasql.Type;
import com.google.zetasql.Value;
import com.google.zetasql.ZetaSQLBuiltinFunctionOptions;
import com.google.zetasql.ZetaSQLOptions.LanguageFeature;
import com.google.zetasql.ZetaSQLOptions.LanguageVersion;
import com.google.zetasql.ZetaSQLOptions.ProductMode;
import com.google.zetasql.ZetaSQLType.TypeKind;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;

/**
 * Evaluates queries by GoogleSQL's reference implementation. Each line of standard input is a query
 * as a JSON string; each line of standard output is its result: {"columns": [[name, type]], "rows":
 * [[value]]} or {"error": text}. A value is null, a boolean, an array (of ARRAY and STRUCT), or a
 * string: INT64 in decimal, FLOAT64 as the sixteen hexadecimal digits of its bits and "nan", FLOAT32
 * as those of its value as a FLOAT64, BYTES in hexadecimal, DATE as days and TIMESTAMP as
 * microseconds since 1970.
 */
public final class Reference {
  private static final Gson GSON = new Gson();

  public static void main(String[] args) throws Exception {
    LanguageOptions language = new LanguageOptions();
    language.setLanguageVersion(LanguageVersion.VERSION_CURRENT);
    language.setProductMode(ProductMode.PRODUCT_EXTERNAL);
    for (LanguageFeature feature : LanguageOptions.getLanguageFeaturesForVersion(LanguageVersion.VERSION_CURRENT)) {
      language.enableLanguageFeature(feature);
    }
    for (String name : args) {
      language.enableLanguageFeature(LanguageFeature.valueOf(name));
    }
    language.setSupportsAllStatementKinds();
    AnalyzerOptions options = new AnalyzerOptions();
    options.setLanguageOptions(language);
    options.setDefaultTimezone("UTC");
    SimpleCatalog catalog = new SimpleCatalog("reference");
    catalog.addZetaSQLFunctionsAndTypes(new ZetaSQLBuiltinFunctionOptions(language));
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
    catalog.register();
    for (String line; (line = in.readLine()) != null; ) {
      out.write(GSON.toJson(run(GSON.fromJson(line, String.class), options, catalog)));
      out.write('\n');
      out.flush();
    }
  }

  private static JsonObject run(String sql, AnalyzerOptions options, SimpleCatalog catalog) {
    JsonObject result = new JsonObject();
    try (PreparedQuery query =
        PreparedQuery.builder().setSql(sql).setAnalyzerOptions(options).setCatalog(catalog).prepare()) {
      JsonArray columns = new JsonArray();
      for (SimpleColumn column : query.getColumns()) {
        JsonArray pair = new JsonArray();
        pair.add(column.getName());
        pair.add(name(column.getType()));
        columns.add(pair);
      }
      JsonArray rows = new JsonArray();
      for (List<Value> row : query.execute(new HashMap<>()).getTableData()) {
        JsonArray values = new JsonArray();
        for (Value value : row) {
          values.add(plain(value));
        }
        rows.add(values);
      }
      result.add("columns", columns);
      result.add("rows", rows);
    } catch (RuntimeException e) {
      result = new JsonObject();
      result.addProperty("error", String.valueOf(e.getMessage()));
    }
    return result;
  }

  /** Returns a type as Trestle writes it. The names of fields are left out. */
  private static String name(Type type) {
    switch (type.getKind()) {
      case TYPE_FLOAT:
        return "FLOAT32";
      case TYPE_ARRAY:
        return "ARRAY<" + name(type.asArray().getElementType()) + ">";
      case TYPE_STRUCT:
        StringBuilder out = new StringBuilder("STRUCT<");
        for (StructType.StructField field : type.asStruct().getFieldList()) {
          out.append(out.length() > 7 ? ", " : "").append(name(field.getType()));
        }
        return out.append(">").toString();
      default:
        return type.typeName(ProductMode.PRODUCT_EXTERNAL);
    }
  }

  private static JsonElement plain(Value value) {
    if (value.isNull()) {
      return JsonNull.INSTANCE;
    }
    TypeKind kind = value.getType().getKind();
    switch (kind) {
      case TYPE_BOOL:
        return new JsonPrimitive(value.getBoolValue());
      case TYPE_INT64:
        return new JsonPrimitive(Long.toString(value.getInt64Value()));
      case TYPE_FLOAT:
        return number(value.getFloatValue());
      case TYPE_DOUBLE:
        return number(value.getDoubleValue());
      case TYPE_STRING:
        return new JsonPrimitive(value.getStringValue());
      case TYPE_BYTES:
        return new JsonPrimitive(HexFormat.of().formatHex(value.getBytesValue().toByteArray()));
      case TYPE_DATE:
        return new JsonPrimitive(Integer.toString(value.getDateValue()));
      case TYPE_TIMESTAMP:
        return new JsonPrimitive(Long.toString(value.getTimestampUnixMicros()));
      case TYPE_ARRAY:
        JsonArray elements = new JsonArray();
        for (Value element : value.getElementList()) {
          elements.add(plain(element));
        }
        return elements;
      case TYPE_STRUCT:
        JsonArray fields = new JsonArray();
        for (Value field : value.getFieldList()) {
          fields.add(plain(field));
        }
        return fields;
      default:
        throw new IllegalArgumentException("a value of " + kind + " has no form here");
    }
  }

  private static JsonElement number(double value) {
    if (Double.isNaN(value)) {
      return new JsonPrimitive("nan");
    }
    return new JsonPrimitive(String.format("%016x", new BigInteger(Long.toUnsignedString(Double.doubleToRawLongBits(value)))));
  }
}
