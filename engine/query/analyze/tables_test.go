package analyze

// queries are statements, with the columns of their results and their algebra.
var queries = []struct{ sql, want string }{
	{`SELECT * FROM t`, `_key#1 BYTES, cf1#2 MAP<BYTES, BYTES>, cf2#3 MAP<BYTES, BYTES>, counts#4 MAP<BYTES, INT64>
Keep _key#1, cf1#2, cf2#3, counts#4
  Scan t: _key#1, cf1#2, cf2#3, counts#4`},
	{`SELECT _key, cf1['a'] AS a FROM t WHERE _key = 'x' AND cf1['b'] = "true" LIMIT 3`, `_key#1 BYTES, a#5 BYTES
Keep _key#1, a#5
  Limit 3
    Project a#5=$map_subscript(cf1#2, b"a")
      Filter ((_key#1 = b"x") AND ($map_subscript(cf1#2, b"b") = b"true"))
        Scan t: _key#1, cf1#2`},
	{`SELECT count(*) FROM t WHERE _key IN UNNEST(@arr)`, `#5 INT64
Keep #5
  Aggregate: count_star#5=$count_star()
    Filter $in_array(_key#1, @arr)
      Scan t: _key#1`},
	{`SELECT cf1['a'] x, COUNT(*), SUM(counts['n']) AS s FROM t WHERE STARTS_WITH(_key, 'p') GROUP BY x HAVING s > 3 ORDER BY s DESC, 1`, `x#7 BYTES, #5 INT64, s#6 INT64
Keep x#7, #5, s#6
  Sort sum#6 DESC, x#7
    Filter (sum#6 > 3)
      Aggregate by x#7=$map_subscript(cf1#2, b"a"): count_star#5=$count_star(), sum#6=SUM($map_subscript(counts#4, b"n"))
        Filter STARTS_WITH(_key#1, b"p")
          Scan t: _key#1, cf1#2, counts#4`},
	{`SELECT * FROM t(with_history => TRUE, after => TIMESTAMP('2024-01-01'), latest_n => 3)`, `_key#1 BYTES, cf1#2 MAP<BYTES, ARRAY<STRUCT<timestamp TIMESTAMP, value BYTES>>>, cf2#3 MAP<BYTES, ARRAY<STRUCT<timestamp TIMESTAMP, value BYTES>>>, counts#4 MAP<BYTES, ARRAY<STRUCT<timestamp TIMESTAMP, value INT64>>>
Keep _key#1, cf1#2, cf2#3, counts#4
  Scan t with_history after=TIMESTAMP "2024-01-01 00:00:00+00" latest_n=3: _key#1, cf1#2, cf2#3, counts#4`},
	{`SELECT _key, cf1['a'] AS a, _timestamp FROM UNPACK(t(with_history=>true)) WHERE _timestamp > @ts`, `_key#1 BYTES, a#6 BYTES, _timestamp#5 TIMESTAMP
Keep _key#1, a#6, _timestamp#5
  Project a#6=$map_subscript(cf1#2, b"a")
    Filter (_timestamp#5 > @ts)
      Scan t unpack with_history: _timestamp#5, _key#1, cf1#2`},
	{`SELECT * FROM UNPACK((SELECT _key, cf1['a'] AS v, cf2 FROM t(with_history=>true)))`, `_key#1 BYTES, v#16 BYTES, cf2#20 MAP<BYTES, BYTES>, _timestamp#13 TIMESTAMP
Keep _key#1, v#16, cf2#20, _timestamp#13
  Project v#16=(subquery), cf2#20=MAP_FROM_ARRAY(ARRAY(subquery))
    subquery of #5 #13
      Keep value#15
        Limit 1
          Project value#15=element#14.value
            Filter (element#14.timestamp = _timestamp#13)
              Unnest element#14=v#5
                OneRow
    subquery of #3 #13
      Keep pair#19
        Project pair#19=STRUCT(entry#17.key, cell#18.value)
          Filter (cell#18.timestamp = _timestamp#13)
            Unnest cell#18=entry#17.value
              Unnest entry#17=MAP_ENTRIES(cf2#3)
                OneRow
    Unnest _timestamp#13=ARRAY(subquery)
      subquery of #5 #3
        Keep timestamp#12
          Sort timestamp#12 DESC
            Aggregate distinct by timestamp#12=timestamp#11
              Union all timestamp#11
                input #7
                  Project timestamp#7=element#6.timestamp
                    Unnest element#6=v#5
                      OneRow
                input #10
                  Project timestamp#10=cell#9.timestamp
                    Unnest cell#9=element#8.value
                      Unnest element#8=MAP_ENTRIES(cf2#3)
                        OneRow
      Project v#5=$map_subscript(cf1#2, b"a")
        Scan t with_history: _key#1, cf1#2, cf2#3`},
	{`SELECT * FROM t(as_of => @ts)`, `_key#1 BYTES, cf1#2 MAP<BYTES, BYTES>, cf2#3 MAP<BYTES, BYTES>, counts#4 MAP<BYTES, INT64>
Keep _key#1, cf1#2, cf2#3, counts#4
  Scan t as_of=@ts: _key#1, cf1#2, cf2#3, counts#4`},
	{`SELECT * FROM events WHERE user = 'ann' AND day > 3`, `user#2 STRING, day#3 INT64, f#4 MAP<BYTES, BYTES>
Keep user#2, day#3, f#4
  Filter ((user#2 = "ann") AND (day#3 > 3))
    Scan events: user#2, day#3, f#4`},
	{`SELECT _key, user FROM events`, `_key#1 BYTES, user#2 STRING
Keep _key#1, user#2
  Scan events: _key#1, user#2`},
	{`SELECT * FROM keys`, `_key#1 BYTES, a#5 BYTES
Keep _key#1, a#5
  Project a#5=$map_subscript(cf1#2, b"a")
    Scan t: _key#1, cf1#2`},
	{`SELECT * FROM nested`, `a#5 BYTES
Keep a#5
  Filter $not($is_null(a#5))
    Keep _key#1, a#5
      Project a#5=$map_subscript(cf1#2, b"a")
        Scan t: _key#1, cf1#2`},
	{`SELECT * FROM mine`, `_key#1 BYTES
Keep _key#1
  Filter ($map_subscript(cf1#2, b"owner") = CAST($map_subscript(VIEW_PARAMETERS(), "user") AS BYTES))
    Scan t: cf1#2, _key#1`},
	{`SELECT p.name, q.name FROM people p JOIN pets q ON p.id = q.owner`, `name#2 STRING, name#9 STRING
Keep name#2, name#9
  Inner join on (id#1 = owner#8)
    Scan people AS p: id#1, name#2
    Scan pets AS q: owner#8, name#9`},
	{`SELECT * FROM people p JOIN pets q USING (id)`, `id#1 INT64, name#2 STRING, age#3 INT64, score#4 FLOAT64, tags#5 ARRAY<STRING>, home#6 STRUCT<city STRING, zip INT64>, owner#8 INT64, name#9 STRING
Keep id#1, name#2, age#3, score#4, tags#5, home#6, owner#8, name#9
  Inner join on (id#1 = id#7)
    Scan people AS p: id#1, name#2, age#3, score#4, tags#5, home#6
    Scan pets AS q: id#7, owner#8, name#9`},
	{`SELECT * FROM people p FULL JOIN pets q USING (id)`, `id#10 INT64, name#2 STRING, age#3 INT64, score#4 FLOAT64, tags#5 ARRAY<STRING>, home#6 STRUCT<city STRING, zip INT64>, owner#8 INT64, name#9 STRING
Keep id#10, name#2, age#3, score#4, tags#5, home#6, owner#8, name#9
  Project id#10=COALESCE(id#1, id#7)
    Full join on (id#1 = id#7)
      Scan people AS p: id#1, name#2, age#3, score#4, tags#5, home#6
      Scan pets AS q: id#7, owner#8, name#9`},
	{`SELECT name, tag FROM people, people.tags AS tag WITH OFFSET o WHERE o < 2`, `name#2 STRING, tag#7 STRING
Keep name#2, tag#7
  Filter (o#8 < 2)
    Unnest tag#7=tags#5 offset o#8
      Scan people: tags#5, name#2`},
	{`SELECT name, tag FROM people p LEFT JOIN p.tags tag ON tag != 'x'`, `name#2 STRING, tag#7 STRING
Keep name#2, tag#7
  Unnest left tag#7=tags#5 on (tag#7 != "x")
    Scan people AS p: tags#5, name#2`},
	{`SELECT name, (SELECT COUNT(*) FROM pets WHERE owner = p.id) n FROM people p ORDER BY n`, `name#2 STRING, n#11 INT64
Keep name#2, n#11
  Sort n#11
    Project n#11=(subquery)
      subquery of #1
        Keep #10
          Aggregate: count_star#10=$count_star()
            Filter (owner#8 = id#1)
              Scan pets: owner#8
      Scan people AS p: name#2, id#1`},
	{`SELECT name FROM people p WHERE EXISTS (SELECT 1 FROM pets WHERE owner = p.id AND p.age > 3)`, `name#2 STRING
Keep name#2
  Filter EXISTS(subquery)
    subquery of #1 #3
      Keep #10
        Project #10=1
          Filter ((owner#8 = id#1) AND (age#3 > 3))
            Scan pets: owner#8
    Scan people AS p: id#1, age#3, name#2`},
	{`SELECT name FROM people WHERE id IN (SELECT owner FROM pets)`, `name#2 STRING
Keep name#2
  Filter IN(subquery: (id#1 = owner#8))
    subquery
      Keep owner#8
        Scan pets: owner#8
    Scan people: id#1, name#2`},
	{`SELECT age, (SELECT MAX(x) FROM UNNEST([age, 1]) x) FROM people GROUP BY age`, `age#9 INT64, #10 INT64
Keep age#9, #10
  Project #10=(subquery)
    subquery of #9
      Keep #8
        Aggregate: max#8=MAX(x#7)
          Unnest x#7=[age#9, 1]
            OneRow
    Aggregate by age#9=age#3
      Scan people: age#3`},
	{`SELECT name, RANK() OVER (PARTITION BY home.city ORDER BY score DESC) r FROM people QUALIFY r = 1`, `name#2 STRING, r#7 INT64
Keep name#2, r#7
  Filter (rank#7 = 1)
    Window rank#7=RANK() OVER (PARTITION BY home#6.city ORDER BY score#4 DESC RANGE UNBOUNDED PRECEDING TO CURRENT ROW)
      Scan people: name#2, home#6, score#4`},
	{`SELECT home.city, SUM(age) FROM people GROUP BY 1`, `city#8 STRING, #7 INT64
Keep city#8, #7
  Aggregate by city#8=home#6.city: sum#7=SUM(age#3)
    Scan people: home#6, age#3`},
	{`SELECT home.city, GROUPING(home.city), SUM(age) FROM people GROUP BY ROLLUP(home.city, age)`, `city#9 STRING, #7 INT64, #8 INT64
Keep city#9, #7, #8
  Aggregate by city#9=home#6.city, age#10=age#3 sets [[0 1] [0] []]: sum#8=SUM(age#3) grouping grouping#7=city#9
    Scan people: home#6, age#3`},
	{`SELECT DISTINCT age + 1 FROM people ORDER BY age + 1`, `#8 INT64
Keep #8
  Sort #8
    Aggregate distinct by #8=#7
      Project #7=(age#3 + 1)
        Scan people: age#3`},
	{`WITH a AS (SELECT 1 x), b AS (SELECT x + 1 y FROM a) SELECT * FROM a, b`, `x#4 INT64, y#5 INT64
Keep x#4, y#5
  With
    a
      Keep x#1
        Project x#1=1
          OneRow
    b
      Keep y#3
        Project y#3=(x#2 + 1)
          Ref a x#2
    Keep x#4, y#5
      Inner join
        Ref a x#4
        Ref b y#5`},
	{`WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 10) SELECT * FROM r`, `n#5 INT64
Keep n#5
  With
    r recursive
      Keep n#4
        Union all n#4
          input #1
            Project n#1=1
              OneRow
          input #3
            Project #3=(n#2 + 1)
              Filter (n#2 < 10)
                Ref r n#2
    Keep n#5
      Ref r n#5`},
	{`SELECT 1 AS a, 2.5 UNION ALL SELECT NULL, 3 UNION ALL SELECT 5.5, 1`, `a#7 FLOAT64, #8 FLOAT64
Keep a#7, #8
  Union all a#7, #8
    input #9 #2
      Project a#9=1
        Project a#1=1, #2=2.5
          OneRow
    input #10 #11
      Project #10=NULL, #11=3
        Project #3=NULL, #4=3
          OneRow
    input #5 #12
      Project #12=1
        Project #5=5.5, #6=1
          OneRow`},
	{`SELECT AS STRUCT id, name FROM people`, `#7 STRUCT<id INT64, name STRING>
Keep #7
  Project #7=STRUCT(id#1, name#2)
    Scan people: id#1, name#2`},
	{`SELECT p.home.* EXCEPT (zip) FROM people p`, `city#7 STRING
Keep city#7
  Project city#7=home#6.city
    Scan people AS p: home#6`},
	{`SELECT * REPLACE (age + 1 AS age) FROM people`, `id#1 INT64, name#2 STRING, age#7 INT64, score#4 FLOAT64, tags#5 ARRAY<STRING>, home#6 STRUCT<city STRING, zip INT64>
Keep id#1, name#2, age#7, score#4, tags#5, home#6
  Project age#7=(age#3 + 1)
    Scan people: id#1, name#2, age#3, score#4, tags#5, home#6`},
	{`SELECT ARRAY_TRANSFORM(tags, x -> CONCAT(x, name)) FROM people`, `#8 ARRAY<STRING>
Keep #8
  Project #8=ARRAY_TRANSFORM(tags#5, (x#7) -> CONCAT(x#7, name#2))
    Scan people: tags#5, name#2`},
	{`SELECT DATE_ADD(DATE '2024-01-31', INTERVAL 1 MONTH), EXTRACT(YEAR FROM @ts), DATE_TRUNC(DATE '2024-05-06', WEEK(MONDAY))`, `#1 DATE, #2 INT64, #3 DATE
Keep #1, #2, #3
  Project #1=DATE "2024-02-29", #2=$extract(@ts, "YEAR"), #3=DATE "2024-05-06"
    OneRow`},
	{`SELECT IF(age > 3, 'a', NULL), CASE age WHEN 1 THEN 1 ELSE 2.5 END, COALESCE(NULL, age) FROM people`, `#7 STRING, #8 FLOAT64, #9 INT64
Keep #7, #8, #9
  Project #7=IF((age#3 > 3), "a", NULL), #8=$case_with_value(age#3, 1, 1, 2.5), #9=COALESCE(NULL, age#3)
    Scan people: age#3`},
	{`SELECT WITH(a AS age + 1, a * a) FROM people`, `#8 INT64
Keep #8
  Project #8=WITH(a#7=(age#3 + 1), (a#7 * a#7))
    Scan people: age#3`},
	{`SELECT CAST('JAZZ' AS bundle.Genre), CAST(cf1['s'] AS bundle.Song).title FROM t`, `#5 Genre, title#6 STRING
Keep #5, title#6
  Project #5=JAZZ, title#6=CAST($map_subscript(cf1#2, b"s") AS Song).title
    Scan t: cf1#2`},
	{`SELECT 1 + 1, CONCAT('a', 'b'), 1/0, SAFE.LN(-1)`, `#1 INT64, #2 STRING, #3 FLOAT64, #4 FLOAT64
Keep #1, #2, #3, #4
  Project #1=2, #2="ab", #3=(1 / 0), #4=NULL
    OneRow`},
	{`SELECT STRING_AGG(name ORDER BY age LIMIT 2), ARRAY_AGG(DISTINCT age IGNORE NULLS) FROM people`, `#7 STRING, #8 ARRAY<INT64>
Keep #7, #8
  Aggregate: string_agg#7=STRING_AGG(name#2 ORDER BY age#3 LIMIT 2), array_agg#8=ARRAY_AGG(DISTINCT age#3 IGNORE NULLS)
    Scan people: name#2, age#3`},
	{`SELECT x, y FROM UNNEST([1, 2] AS x, ['a'] AS y, mode => 'STRICT') WITH OFFSET o`, `x#1 INT64, y#2 STRING
Keep x#1, y#2
  Unnest x#1=[1, 2], y#2=["a"] offset o#3 mode 2
    OneRow`},
	{`SELECT * FROM UNNEST([STRUCT(1 AS a, 2 AS b)]) JOIN UNNEST([STRUCT(1 AS a, 3 AS c)]) USING (a)`, `a#3 INT64, b#4 INT64, c#5 INT64
Keep a#3, b#4, c#5
  Project b#4=#1.b, c#5=#2.c
    Project a#3=#1.a
      Inner join on (#1.a = #2.a)
        Unnest #1=[(1, 2)]
          OneRow
        Unnest #2=[(1, 3)]
          OneRow`},
	{`SELECT id FROM people WHERE id > ALL (SELECT owner FROM pets WHERE pets.name = people.name)`, `id#1 INT64
Keep id#1
  Filter ALL(subquery: (id#1 > owner#8))
    subquery of #2
      Keep owner#8
        Filter (name#9 = name#2)
          Scan pets: name#9, owner#8
    Scan people: id#1, name#2`},
	{`SELECT SUM(SUM(age)) OVER (ORDER BY home.city ROWS 2 PRECEDING) FROM people GROUP BY home.city`, `#8 INT64
Keep #8
  Window sum#8=SUM(sum#7) OVER (ORDER BY city#9 ROWS 2 PRECEDING TO CURRENT ROW)
    Aggregate by city#9=home#6.city: sum#7=SUM(age#3)
      Scan people: age#3, home#6`},
	{`SELECT SUM(MAX(age) GROUP BY name HAVING COUNT(*) > 1) FROM people WHERE id > 0`, `#9 INT64
Keep #9
  Aggregate: sum#9=SUM(max#8 GROUP by name#7=name#2: max#8=MAX(age#3), count_star#10=$count_star() HAVING (count_star#10 > 1))
    Filter (id#1 > 0)
      Scan people: id#1, name#2, age#3`},
	{`SELECT FLATTEN(x.tags) FROM (SELECT [STRUCT(['a'] AS tags)] AS x)`, `#7 ARRAY<STRING>
Keep #7
  Project #7=ARRAY(subquery)
    subquery of #1
      Keep #6
        Sort offset#3, offset#5
          Project #6=element#4
            Unnest element#4=element#2.tags offset offset#5
              Unnest element#2=x#1 offset offset#3
                OneRow
    Keep x#1
      Project x#1=[(["a"])]
        OneRow`},
	{`SELECT name, t FROM people p JOIN (SELECT 1 AS one) ON TRUE, UNNEST(p.tags) t`, `name#2 STRING, t#8 STRING
Keep name#2, t#8
  Unnest t#8=tags#5
    Inner join on TRUE
      Scan people AS p: tags#5, name#2
      Keep one#7
        Project one#7=1
          OneRow`},
	{`SELECT * FROM people p RIGHT JOIN UNNEST([1,2]) AS n ON p.id = n`, `id#1 INT64, name#2 STRING, age#3 INT64, score#4 FLOAT64, tags#5 ARRAY<STRING>, home#6 STRUCT<city STRING, zip INT64>, n#7 INT64
Keep id#1, name#2, age#3, score#4, tags#5, home#6, n#7
  Left join on (id#1 = n#7)
    Unnest n#7=[1, 2]
      OneRow
    Scan people AS p: id#1, name#2, age#3, score#4, tags#5, home#6`},
	{`SELECT p.id FROM people p JOIN (p.tags t JOIN pets q ON q.name = t) ON TRUE`, `id#1 INT64
Keep id#1
  Inner join lateral on TRUE
    Scan people AS p: tags#5, id#1
    Inner join on (name#10 = t#7)
      Unnest t#7=tags#5
        OneRow
      Scan pets AS q: name#10`},
	{`SELECT 1 AS a, 2 AS b UNION ALL BY NAME SELECT 3 AS b, 4 AS a`, `a#5 INT64, b#6 INT64
Keep a#5, b#6
  Union all a#5, b#6
    input #1 #2
      Project a#1=1, b#2=2
        OneRow
    input #4 #3
      Project b#3=3, a#4=4
        OneRow`},
	{`SELECT 1 AS a UNION DISTINCT SELECT 2 ORDER BY a DESC LIMIT 1`, `a#3 INT64
Keep a#3
  Limit 1
    Sort a#3 DESC
      Union a#3
        input #1
          Project a#1=1
            OneRow
        input #2
          Project #2=2
            OneRow`},
	{`SELECT COUNT(*) OVER w FROM people WINDOW w AS (PARTITION BY age)`, `#7 INT64
Keep #7
  Window count_star#7=$count_star() OVER (PARTITION BY age#3 ROWS UNBOUNDED PRECEDING TO UNBOUNDED FOLLOWING)
    Scan people: age#3`},
	{`SELECT * FROM people GROUP BY ALL`, `id#7 INT64, name#8 STRING, age#9 INT64, score#10 FLOAT64, tags#11 ARRAY<STRING>, home#12 STRUCT<city STRING, zip INT64>
Keep id#7, name#8, age#9, score#10, tags#11, home#12
  Aggregate by id#7=id#1, name#8=name#2, age#9=age#3, score#10=score#4, tags#11=tags#5, home#12=home#6
    Scan people: id#1, name#2, age#3, score#4, tags#5, home#6`},
	{`SELECT name, COUNT(*) FROM people GROUP BY ALL`, `name#8 STRING, #7 INT64
Keep name#8, #7
  Aggregate by name#8=name#2: count_star#7=$count_star()
    Scan people: name#2`},
	{`SELECT age, SUM(score) FROM people GROUP BY GROUPING SETS ((age), (name), ())`, `age#8 INT64, #7 FLOAT64
Keep age#8, #7
  Aggregate by age#8=age#3, name#9=name#2 sets [[0] [1] []]: sum#7=SUM(score#4)
    Scan people: age#3, score#4, name#2`},
	{`SELECT ARRAY(SELECT name FROM pets ORDER BY id) FROM people`, `#10 ARRAY<STRING>
Keep #10
  Project #10=ARRAY(subquery)
    subquery
      Keep name#9
        Sort id#7
          Scan pets: name#9, id#7
    Scan people`},
	{`SELECT a.b.c FROM (SELECT STRUCT(STRUCT(1 AS c) AS b) AS a)`, `c#2 INT64
Keep c#2
  Project c#2=a#1.b.c
    Keep a#1
      Project a#1=((1))
        OneRow`},
	{`SELECT p FROM people p`, `p#7 STRUCT<id INT64, name STRING, age INT64, score FLOAT64, tags ARRAY<STRING>, home STRUCT<city STRING, zip INT64>>
Keep p#7
  Project p#7=STRUCT(id#1, name#2, age#3, score#4, tags#5, home#6)
    Scan people AS p: id#1, name#2, age#3, score#4, tags#5, home#6`},
	{`SELECT ERROR('x'), IF(TRUE, 'a', ERROR('no'))`, `#1 INT64, #2 STRING
Keep #1, #2
  Project #1=ERROR("x"), #2=IF(TRUE, "a", ERROR("no"))
    OneRow`},
	{`SELECT STRUCT<a INT64, b STRING>(1, 'x').b, (1, 2) = (1, 2.5)`, `b#1 STRING, #2 BOOL
Keep b#1, #2
  Project b#1="x", #2=FALSE
    OneRow`},
	{`SELECT [1, NULL, 2.5], ['a', b'b'], [], ARRAY<DATE>['2024-01-01']`, `#1 ARRAY<FLOAT64>, #2 ARRAY<BYTES>, #3 ARRAY<INT64>, #4 ARRAY<DATE>
Keep #1, #2, #3, #4
  Project #1=[1, NULL, 2.5], #2=[b"a", b"b"], #3=[], #4=[DATE "2024-01-01"]
    OneRow`},
	{`SELECT CURRENT_DATE(), CURRENT_TIMESTAMP, RAND() < 0.5`, `#1 DATE, #2 TIMESTAMP, #3 BOOL
Keep #1, #2, #3
  Project #1=CURRENT_DATE(), #2=CURRENT_TIMESTAMP(), #3=(RAND() < 0.5)
    OneRow`},
	{`SELECT ANY_VALUE(name HAVING MAX age), STRING_AGG(DISTINCT name, ',' ORDER BY name) FROM people`, `#7 STRING, #8 STRING
Keep #7, #8
  Aggregate: any_value#7=ANY_VALUE(name#2 HAVING MAX age#3), string_agg#8=STRING_AGG(DISTINCT name#2, "," ORDER BY name#2)
    Scan people: name#2, age#3`},
	{`SELECT MAP_CONTAINS_KEY(cf1, 'a'), WRITE_TIMESTAMP(cf1, 'q'), MAP_ENTRIES(cf1) FROM t`, `#5 BOOL, #6 TIMESTAMP, #7 ARRAY<STRUCT<key BYTES, value BYTES>>
Keep #5, #6, #7
  Project #5=MAP_CONTAINS_KEY(cf1#2, b"a"), #6=WRITE_TIMESTAMP(cf1#2, b"q"), #7=MAP_ENTRIES(cf1#2)
    Scan t: cf1#2`},
	{`SELECT k.key, k.value FROM t CROSS JOIN UNNEST(MAP_ENTRIES(cf1)) k`, `key#6 BYTES, value#7 BYTES
Keep key#6, value#7
  Project key#6=k#5.key, value#7=k#5.value
    Unnest k#5=MAP_ENTRIES(cf1#2)
      Scan t: cf1#2`},
	{"SELECT * FROM `my-table` WHERE _key LIKE 'a%'", `_key#1 BYTES, f#2 MAP<BYTES, BYTES>
Keep _key#1, f#2
  Filter (_key#1 LIKE b"a%")
    Scan my-table: _key#1, f#2`},
	{`SELECT name FROM people p WHERE (SELECT COUNT(*) FROM pets q WHERE q.owner = p.id) > 1 AND EXISTS (SELECT 1 FROM UNNEST(p.tags) x WHERE x = p.name)`, `name#2 STRING
Keep name#2
  Filter (((subquery) > 1) AND EXISTS(subquery))
    subquery of #1
      Keep #10
        Aggregate: count_star#10=$count_star()
          Filter (owner#8 = id#1)
            Scan pets AS q: owner#8
    subquery of #5 #2
      Keep #12
        Project #12=1
          Filter (x#11 = name#2)
            Unnest x#11=tags#5
              OneRow
    Scan people AS p: id#1, tags#5, name#2`},
	{`SELECT id, (SELECT STRUCT(p.name, COUNT(*)) FROM pets) FROM people p GROUP BY p.id, p.name`, `id#12 INT64, #14 STRUCT<name STRING, INT64>
Keep id#12, #14
  Project #14=(subquery)
    subquery of #13
      Keep #11
        Project #11=STRUCT(name#13, count_star#10)
          Aggregate: count_star#10=$count_star()
            Scan pets
    Aggregate by id#12=id#1, name#13=name#2
      Scan people AS p: id#1, name#2`},
}

// refused are statements with errors.
var refused = []struct{ sql, want string }{
	{`SELECT * FROM t(latest_n => 2)`, `Argument latest_n requires with_history => TRUE [at 1:17]`},
	{`SELECT * FROM t(with_history => true, latest_n => 0)`, `Argument latest_n must be at least 1 [at 1:51]`},
	{`SELECT * FROM t(foo => 2)`, "Named argument `foo` not found in signature for call to function t [at 1:17]"},
	{`SELECT * FROM circle`, `Invalid view circle2: View circle refers to itself [at 1:15]`},
	{`SELECT * FROM broken`, `Invalid view broken: Unrecognized name: nothing [at 1:8]`},
	{`SELECT nam FROM people`, `Unrecognized name: nam; Did you mean name? [at 1:8]`},
	{`SELECT foo FROM people`, `Unrecognized name: foo [at 1:8]`},
	{`SELECT * FROM peoplee`, `Table not found: peoplee; Did you mean people? [at 1:15]`},
	{`SELECT TO_INTT(b'x')`, `Function not found: TO_INTT; Did you mean to_int64? [at 1:8]`},
	{`SELECT ABS('x')`, `No matching signature for function ABS
  Argument types: STRING
  Signature: ABS(INT64)
    Argument 1: Unable to coerce type STRING to expected type INT64
  Signature: ABS(FLOAT32)
    Argument 1: Unable to coerce type STRING to expected type FLOAT32
  Signature: ABS(FLOAT64)
    Argument 1: Unable to coerce type STRING to expected type FLOAT64 [at 1:8]`},
	{`SELECT ABS(1, 2)`, `No matching signature for function ABS
  Argument types: INT64, INT64
  Signature: ABS(INT64)
    Signature accepts at most 1 argument, found 2 arguments
  Signature: ABS(FLOAT32)
    Signature accepts at most 1 argument, found 2 arguments
  Signature: ABS(FLOAT64)
    Signature accepts at most 1 argument, found 2 arguments [at 1:8]`},
	{`SELECT _key = @s FROM t`, `No matching signature for operator = for argument types: BYTES, STRING. STRING and BYTES are different types that are not directly comparable. To write a BYTES literal, use a b-prefixed literal such as b'bytes value'
  Signature: T1 = T1
    Unable to find common supertype for templated argument <T1>
      Input types for <T1>: {STRING, BYTES} [at 1:8]`},
	{`SELECT 1 = 'a'`, `No matching signature for operator = for argument types: INT64, STRING
  Signature: T1 = T1
    Unable to find common supertype for templated argument <T1>
      Input types for <T1>: {INT64, STRING} [at 1:8]`},
	{`SELECT name, COUNT(*) FROM people`, `SELECT list expression references column name which is neither grouped nor aggregated [at 1:8]`},
	{`SELECT name FROM people GROUP BY age`, `SELECT list expression references column name which is neither grouped nor aggregated [at 1:8]`},
	{`SELECT SUM(COUNT(*)) FROM people`, `Aggregations of aggregations are not allowed [at 1:12]`},
	{`SELECT 1 FROM people WHERE COUNT(*) > 1`, `Aggregate function COUNT(*) not allowed in WHERE clause [at 1:28]`},
	{`SELECT cf1, COUNT(*) FROM t GROUP BY cf1`, `Grouping by expressions of type MAP is not allowed [at 1:38]`},
	{`SELECT DATE 'abc' = 'x', @ts > 'abc'`, `Invalid DATE literal [at 1:8]`},
	{`SELECT id FROM people, pets`, `Column name id is ambiguous [at 1:8]`},
	{`SELECT CAST(1 AS NUMERIC)`, `Type NUMERIC is not supported [at 1:18]`},
	{`SELECT @zzz`, `Query parameter 'zzz' not found [at 1:8]`},
	{`SELECT @tss`, `Query parameter 'tss' not found; Did you mean ts? [at 1:8]`},
	{`SELECT cf1.text FROM t`, `Cannot access field text on a value with type MAP<BYTES, BYTES> [at 1:12]`},
	{`SELECT name FROM people ORDER BY COUNT(*)`, `The ORDER BY clause only allows aggregation if GROUP BY or SELECT list aggregation is present [at 1:25]`},
	{`SELECT name FROM people HAVING name = 'x'`, `The HAVING clause requires GROUP BY or aggregation to be present [at 1:32]`},
	{`SELECT 1 UNION ALL SELECT 1, 2`, `Queries in UNION ALL have mismatched column count; query 1 has 1 column, query 2 has 2 columns [at 1:20]`},
	{`SELECT 1 UNION ALL SELECT 'a'`, `Column 1 in UNION ALL has incompatible types: INT64, STRING [at 1:20]`},
	{`SELECT AVG(age) OVER (), name FROM people WHERE RANK() OVER (ORDER BY age) = 1`, `Analytic function not allowed in WHERE clause [at 1:49]`},
	{`SELECT LAG(age) OVER () FROM people`, `Window ORDER BY is required for analytic function lag [at 1:22]`},
	{`SELECT RANK() FROM people`, `Analytic function RANK cannot be called without an OVER clause [at 1:8]`},
	{`SELECT ABS(DISTINCT 1)`, `Non-aggregate function ABS cannot be called with DISTINCT [at 1:8]`},
	{`SELECT (SELECT 1, 2)`, `Scalar subquery cannot have more than one column unless using SELECT AS STRUCT to build STRUCT values [at 1:8]`},
	{`SELECT 1 IN (SELECT 1, 2)`, `Subquery of type IN must have only one output column [at 1:14]`},
	{`SELECT a.x FROM (SELECT STRUCT(1 AS b) AS a)`, `Field name x does not exist in STRUCT<b INT64> [at 1:10]`},
	{`SELECT people.foo FROM people`, `Name foo not found inside people [at 1:15]`},
	{`SELECT DATE_ADD('2024-01-01', INTERVAL 1 DAY), DATE_ADD('xx', INTERVAL 1 DAY)`, `Could not cast literal "xx" to type DATE [at 1:57]`},
	{`SELECT DATE_TRUNC(DATE '2024-01-01', FORTNIGHT)`, `A valid date part name is required but found FORTNIGHT [at 1:38]`},
	{`SELECT CAST([1] AS INT64)`, `Invalid cast from ARRAY<INT64> to INT64 [at 1:13]`},
	{`SELECT -9223372036854775808, 9223372036854775808`, `Invalid integer literal: 9223372036854775808 [at 1:30]`},
	{`SELECT 1 + NULL`, `Operands of + cannot be literal NULL [at 1:12]`},
	{`SELECT ['a', 1]`, `Array elements of types {INT64, STRING} do not have a common supertype [at 1:8]`},
	{`SELECT NOT name FROM people`, `No matching signature for operator NOT
  Argument types: STRING
  Signature: NOT (BOOL)
    Argument 1: Unable to coerce type STRING to expected type BOOL [at 1:8]`},
	{`SELECT * FROM t WHERE cf1['a']`, `WHERE clause should return type BOOL, but returns BYTES [at 1:23]`},
	{`SELECT x FROM people, people`, `Duplicate table alias people in the same FROM clause [at 1:23]`},
	{`SELECT name AS n FROM people WHERE n = 'x'`, `Unrecognized name: n [at 1:36]`},
	{`SELECT COUNT(*) FROM people LIMIT age`, `Unrecognized name: age [at 1:35]`},
	{`SELECT DISTINCT tags, cf1 FROM people, t`, `Column cf1 of type MAP cannot be used in SELECT DISTINCT [at 1:23]`},
	{`SELECT DISTINCT name FROM people ORDER BY age`, `ORDER BY clause expression references column age which is not visible after SELECT DISTINCT [at 1:43]`},
	{`SELECT name FROM people ORDER BY 2`, `ORDER BY is out of SELECT column number range: 2 [at 1:34]`},
	{`SELECT name FROM people GROUP BY 2`, `GROUP BY is out of SELECT column number range: 2 [at 1:34]`},
	{`SELECT COUNT(*) AS c FROM people GROUP BY c`, `Column c contains an aggregation function, which is not allowed in GROUP BY [at 1:43]`},
	{`SELECT * EXCEPT (zzz) FROM people`, `Column zzz in SELECT * EXCEPT list does not exist [at 1:18]`},
	{`SELECT *`, `SELECT * must have a FROM clause [at 1:8]`},
	{`SELECT 1 WHERE TRUE`, `Query without FROM clause cannot have a WHERE clause [at 1:10]`},
	{`SELECT CAST(1 AS unknown.Type)`, `Type not found: unknown.Type [at 1:18]`},
	{`UPDATE t SET _key = 'x' WHERE TRUE`, `Cannot UPDATE value on primary key column: _key [at 1:14]`},
	{`UPDATE t SET nope = 'x' WHERE TRUE`, `Column nope is not present in table t [at 1:14]`},
	{`DELETE FROM people WHERE TRUE`, `Table people is a view or another relation that cannot be written [at 1:13]`},
	{`INSERT INTO t (_key) VALUES ('a')`, `INSERT needs at least one column besides _key: a row without cells does not exist [at 1:1]`},
	{`INSERT INTO t (cf1['a']) VALUES ('a')`, `INSERT needs the column _key [at 1:1]`},
	{`INSERT INTO t (_key, cf1['a']) VALUES ('a')`, `Inserted row has wrong column count; Has 1, expected 2 [at 1:40]`},
	{`INSERT INTO t (_key, counts['a']) VALUES ('a', 3), ('b', 2.5)`, `Value has type FLOAT64 which cannot be inserted into column of type INT64 [at 1:58]`},
	{`SELECT CAST(@n AS STRING FORMAT '999'), CAST(@k AS INT64 FORMAT 'x')`, `FORMAT is not allowed for cast from BYTES to INT64 [at 1:58]`},
	{`SELECT (SELECT p.age) FROM people p GROUP BY p.id`, `SELECT without FROM clause expression references p.age which is neither grouped nor aggregated [at 1:16]`},
	{`SELECT COUNT(*)`, `Aggregate function COUNT(*) not allowed in SELECT without FROM clause [at 1:8]`},
	{`SELECT DISTINCT 1`, `Query without FROM clause cannot use SELECT DISTINCT [at 1:1]`},
	{`SELECT name FROM people ORDER BY 0`, `ORDER BY column number item is out of range. Column numbers must be greater than or equal to one. Found : 0 [at 1:34]`},
	{`SELECT name FROM people ORDER BY -1`, `ORDER BY column number item is out of range. Column numbers must be greater than or equal to one. Found : -1 [at 1:34]`},
	{`SELECT people.name, COUNT(*) FROM people GROUP BY id`, `SELECT list expression references people.name which is neither grouped nor aggregated [at 1:8]`},
	{`SELECT home.city FROM people GROUP BY id`, `SELECT list expression references home.city which is neither grouped nor aggregated [at 1:8]`},
	{`SELECT * FROM people GROUP BY id`, `Star expansion expression references column name which is neither grouped nor aggregated [at 1:8]`},
	{`SELECT name FROM people ORDER BY 'a'`, `Cannot ORDER BY literal values [at 1:34]`},
	{`SELECT ARRAY_AGG(name ORDER BY 1) FROM people`, `Aggregate functions do not allow ORDER BY by index in arguments [at 1:23]`},
	{`SELECT id & name FROM people`, `Bitwise operator & requires two integer/BYTES arguments of the same type, but saw INT64 and STRING [at 1:8]`},
	{`SELECT id IN (name) FROM people`, `No matching signature for operator IN for argument types INT64 and {STRING} [at 1:11]`},
	{`SELECT id IN (SELECT name) FROM people`, `Cannot execute IN subquery with uncomparable types INT64 and STRING [at 1:8]`},
	{`SELECT 'a' IN UNNEST(tags) AND id IN UNNEST(tags) FROM people`, `No matching signature for operator IN UNNEST for argument types: INT64, ARRAY<STRING> [at 1:35]`},
	{`SELECT name LIKE ANY (1) FROM people`, `No matching signature for operator LIKE ANY|SOME for argument types STRING and {INT64} [at 1:13]`},
	{`SELECT CASE WHEN id THEN 1 END FROM people`, `No matching signature for operator CASE; all WHEN argument types must be BOOL but found: INT64; actual argument types (WHEN THEN) ELSE: (INT64 INT64) NULL [at 1:8]`},
	{`SELECT CASE id WHEN 'a' THEN 1 END FROM people`, `No matching signature for operator CASE
  Argument types: INT64, STRING, INT64, NULL [at 1:8]`},
	{`SELECT id BETWEEN 1 AND name FROM people`, `No matching signature for operator BETWEEN
  Argument types: INT64, INT64, STRING
  Signature: (T1) BETWEEN (T1) AND (T1)
    Unable to find common supertype for templated argument <T1>
      Input types for <T1>: {INT64, INT64, STRING} [at 1:11]`},
	{`SELECT EXTRACT(YEAR FROM name) FROM people`, `No matching signature for function EXTRACT for argument types: DATE_TIME_PART FROM STRING
  Signature: EXTRACT(DATE_TIME_PART FROM DATE)
    Argument 1: Unable to coerce type STRING to expected type DATE
  Signature: EXTRACT(DATE_TIME_PART FROM TIMESTAMP [AT TIME ZONE STRING])
    Argument 1: Unable to coerce type STRING to expected type TIMESTAMP [at 1:8]`},
	{`SELECT EXTRACT(HOUR FROM DATE '2020-01-01')`, `EXTRACT from DATE does not support the HOUR date part [at 1:8]`},
	{`SELECT DATE_ADD(DATE '2020-01-01', INTERVAL 1 HOUR)`, `DATE_ADD does not support the HOUR date part when the argument is DATE type [at 1:8]`},
	{`SELECT DATE_ADD(DATE '2020-01-01', 1)`, `Expected INTERVAL expression [at 1:36]`},
	{`SELECT ARRAY_TRANSFORM(tags, e -> nothing) FROM people`, `No matching signature for function ARRAY_TRANSFORM
  Argument types: ARRAY<STRING>, LAMBDA
  Signature: ARRAY_TRANSFORM(ARRAY<T1>, FUNCTION<T1->T2>)
    Argument 2: failed to resolve lambda body, error: Unrecognized name: nothing
  Signature: ARRAY_TRANSFORM(ARRAY<T1>, FUNCTION<(T1, INT64)->T2>)
    Argument 2: lambda requires 2 arguments but 1 is provided [at 1:8]`},
	{`SELECT ARRAY_FILTER(tags, e -> 1) FROM people`, `No matching signature for function ARRAY_FILTER
  Argument types: ARRAY<STRING>, LAMBDA
  Signature: ARRAY_FILTER(ARRAY<T1>, FUNCTION<T1->BOOL>)
    Argument 2: failed to resolve lambda body, error: Lambda should return type BOOL, but returns INT64
  Signature: ARRAY_FILTER(ARRAY<T1>, FUNCTION<(T1, INT64)->BOOL>)
    Argument 2: lambda requires 2 arguments but 1 is provided [at 1:8]`},
	{`SELECT ABS(x => 1)`, "No matching signature for function ABS\n  Argument types: x => INT64\n  Signature: ABS(INT64)\n    Named argument `x` does not exist in signature\n  Signature: ABS(FLOAT32)\n    Named argument `x` does not exist in signature\n  Signature: ABS(FLOAT64)\n    Named argument `x` does not exist in signature [at 1:8]"},
	{`SELECT tags[name] FROM people`, `Array position in [] must be coercible to INT64 type, but has type STRING [at 1:13]`},
	{`SELECT tags.x FROM people`, `Cannot access field x on a value with type ARRAY<STRING>. You may need an explicit call to FLATTEN, and the flattened argument may only contain 'dot' after the first array [at 1:13]`},
	{`SELECT OFFSET(1)`, `OFFSET is not a function. It can only be used for array element access using array[OFFSET(position)] [at 1:8]`},
	{`SELECT LPAD('a', [])`, `Could not cast literal [] to type INT64 [at 1:18]`},
	{`SELECT [1, [2]]`, `Cannot construct array with element type ARRAY<INT64> because nested arrays are not supported [at 1:12]`},
	{`SELECT id FROM people LIMIT 'a'`, `LIMIT ... OFFSET ... expects INT64, got STRING [at 1:29]`},
	{`SELECT * FROM people p JOIN pets p ON TRUE`, `Duplicate table alias p in the same FROM clause [at 1:34]`},
	{`SELECT * FROM people JOIN pets USING (zip)`, `Column zip in USING clause not found on left side of join [at 1:39]`},
	{`SELECT * FROM people p JOIN (SELECT 'a' AS id) q USING (id)`, `Column 'id' in USING has incompatible types that cannot be directly compared using equality on either side of the join: INT64 and STRING [at 1:57]`},
	{`SELECT * EXCEPT (id, id) FROM people`, `Duplicate column id in SELECT * EXCEPT list [at 1:22]`},
	{`SELECT 1 AS x UNION ALL BY NAME SELECT 2 AS y`, `BY NAME requires all input queries to have identical column names, but query 1 has [x] and query 2 has [y] [at 1:15]`},
	{`SELECT SUM(RANK() OVER (ORDER BY id)) FROM people`, `Analytic functions cannot be arguments to aggregate functions [at 1:8]`},
	{`SELECT SUM(id) OVER (ROWS BETWEEN CURRENT ROW AND 1 PRECEDING) FROM people`, `Starting window framing expression cannot be CURRENT ROW when the ending window framing expression is OFFSET PRECEDING [at 1:51]`},
	{`SELECT (1, 2) < (3, 4)`, `Less than is not defined for arguments of type STRUCT<INT64, INT64> [at 1:8]`},
	{`SELECT +name FROM people`, `Operands of + must be numeric type but was STRING [at 1:9]`},
	{`SELECT id IS UNKNOWN FROM people`, `Operand of IS UNKNOWN must be coercible to BOOL, but has type INT64 [at 1:8]`},
	{`SELECT SUM(age) AS age FROM people GROUP BY id HAVING SUM(age) > 1`, `Aggregations of aggregations are not allowed [at 1:59]`},
	{`SELECT DISTINCT id FROM people GROUP BY id, age ORDER BY age`, `ORDER BY clause expression references column age which is not visible after SELECT DISTINCT [at 1:58]`},
	{`SELECT x FROM UNNEST([1]) x WITH OFFSET x`, `Duplicate alias x found [at 1:41]`},
	{`SELECT SUM(id) OVER (w PARTITION BY id) FROM people WINDOW w AS (ORDER BY id)`, `If a window has a PARTITION BY, it cannot reference a named window [at 1:22]`},
	{`SELECT SUM(id) OVER (w ORDER BY id) FROM people WINDOW w AS (ORDER BY id)`, `If a window inherits an ORDER BY from its referenced window, it cannot have an inline ORDER BY [at 1:24]`},
	{`SELECT (name).RIGHT() FROM people`, `No matching signature for function RIGHT
  Argument types: STRING (from chained function call input)
  Signature: RIGHT(STRING, INT64)
    Signature requires at least 2 arguments, found 1 argument (including chained function call input)
  Signature: RIGHT(BYTES, INT64)
    Signature requires at least 2 arguments, found 1 argument (including chained function call input) [at 1:15]`},
	{`SELECT ARRAY_CONCAT(NULL, [1])`, `The argument to ARRAY_CONCAT (or ARRAY_CONCAT_AGG) must be an array type but was NULL [at 1:8]`},
}
