BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE calibrations (
	calibration_id VARCHAR(64) NOT NULL, 
	place_key VARCHAR(16) NOT NULL, 
	workload VARCHAR(128) NOT NULL, 
	parameters JSON NOT NULL, 
	device_kind VARCHAR(128) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	created_at VARCHAR(32) NOT NULL, 
	versions JSON NOT NULL, 
	pairs INTEGER NOT NULL, 
	schema_version INTEGER NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_calibrations PRIMARY KEY (calibration_id)
);
CREATE TABLE checks (
	run_id VARCHAR(64) NOT NULL, 
	name VARCHAR(32) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	passed INTEGER NOT NULL, 
	total INTEGER NOT NULL, 
	worst TEXT NOT NULL, 
	strongest VARCHAR(16) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	cached BOOLEAN NOT NULL, 
	CONSTRAINT pk_checks PRIMARY KEY (run_id, name), 
	CONSTRAINT fk_checks_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
INSERT INTO "checks" VALUES('20260301T090000Z-aaaa','op','passed',114,114,'error ratio 1.00','lossless','77aa',0);
INSERT INTO "checks" VALUES('20260301T090000Z-aaaa','determinism','passed',4,4,'','byte-exact','',0);
INSERT INTO "checks" VALUES('20260301T090000Z-aaaa','tokens','passed',16,16,'near-tie gap 0.20 nat','lossless','',0);
INSERT INTO "checks" VALUES('20260301T090000Z-aaaa','memcheck','not-run',0,0,'','byte-exact','',0);
INSERT INTO "checks" VALUES('20260301T090000Z-aaaa','rollback','passed',2,2,'','byte-exact','',1);
INSERT INTO "checks" VALUES('20260302T090000Z-bbbb','op','failed',111,114,'error ratio 3.02 (norm), 4.10 (99th-percentile row)','broken','',0);
INSERT INTO "checks" VALUES('20260303T090000Z-cccc','op','passed',114,114,'error ratio 1.00','lossless','77aa',0);
INSERT INTO "checks" VALUES('20260303T090000Z-cccc','determinism','passed',4,4,'','byte-exact','',0);
INSERT INTO "checks" VALUES('20260303T090000Z-cccc','tokens','passed',16,16,'near-tie gap 0.20 nat','lossless','',0);
INSERT INTO "checks" VALUES('20260303T090000Z-cccc','memcheck','not-run',0,0,'','byte-exact','',0);
INSERT INTO "checks" VALUES('20260303T090000Z-cccc','rollback','passed',2,2,'','byte-exact','',1);
CREATE TABLE decisions (
	run_id VARCHAR(64) NOT NULL, 
	outcome VARCHAR(16) NOT NULL, 
	reason VARCHAR(32) NOT NULL, 
	axes JSON NOT NULL, 
	detail TEXT NOT NULL, 
	smallest_visible FLOAT, 
	CONSTRAINT pk_decisions PRIMARY KEY (run_id), 
	CONSTRAINT fk_decisions_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
INSERT INTO "decisions" VALUES('20260301T090000Z-aaaa','default-ON','failing-axis-win','["decode/tok_s/c8"]','',0.019);
INSERT INTO "decisions" VALUES('20260302T090000Z-bbbb','gated-OFF','parity-failed','[]','op: 111 of 114 cases hold.',NULL);
CREATE TABLE default_states (
	scope_key VARCHAR(16) NOT NULL, 
	lever VARCHAR(128) NOT NULL, 
	setting VARCHAR(64) NOT NULL, 
	ref VARCHAR(64) NOT NULL, 
	workload VARCHAR(128) NOT NULL, 
	parameters JSON NOT NULL, 
	device_kind VARCHAR(128) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	run_id VARCHAR(64) NOT NULL, 
	confirmed_by VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_default_states PRIMARY KEY (scope_key)
);
INSERT INTO "default_states" VALUES('07cac77e6cf334c7','fa2_nsplits_cap','auto','off','decode','{"model": "tiny", "model_digest": "3f9c1c0a77aa10d2", "sms": 48}','x86_64 CPU','on','20260301T090000Z-aaaa','');
INSERT INTO "default_states" VALUES('d6259a0326e1a7b0','fa2_nsplits_cap','3','off','decode','{"model": "tiny", "model_digest": "3f9c1c0a77aa10d2", "sms": 48}','x86_64 CPU','off','20260302T090000Z-bbbb','');
CREATE TABLE effects (
	run_id VARCHAR(64) NOT NULL, 
	look INTEGER NOT NULL, 
	axis VARCHAR(128) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	units INTEGER NOT NULL, 
	estimate FLOAT, 
	lower FLOAT, 
	upper FLOAT, 
	nominal_p FLOAT, 
	CONSTRAINT pk_effects PRIMARY KEY (run_id, look, axis), 
	CONSTRAINT fk_effects_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c1','t',13,1.5700374880966475044e-01,1.38021297897374689567e-01,1.75632568643158015753e-01,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c2','t',13,4.01817896328318241438e-02,2.17614917815126922284e-02,5.82689081239757752928e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c4','t',13,9.99500333083533148634e-04,-6.01807232556301596043e-03,7.96816964917687435565e-03,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c8','t',13,1.16003675756306143251e-01,9.34903430873388896493e-02,1.38891998866618626706e-01,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'decode/ttft_ms/p95','t',13,-4.00802139753881833672e-03,-1.91828194167739697617e-02,1.0939940038334365624e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'decode/itl_ms/p95','t',13,0.0295588022415444,9.95033085316808334208e-03,4.87901641694320070685e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'memory/peak_bytes','deterministic',13,0.0,0.0,0.0,1.0);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',0,'compile/warmup_s','t',13,-2.02027073175194485377e-02,-9.4310679471241318228e-02,4.87901641694320070685e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c1','t',13,1.5700374880966475044e-01,1.38021297897374689567e-01,1.75632568643158015753e-01,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c2','t',13,4.01817896328318241438e-02,2.17614917815126922284e-02,5.82689081239757752928e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c4','t',13,9.99500333083533148634e-04,-6.01807232556301596043e-03,7.96816964917687435565e-03,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c8','t',13,1.16003675756306143251e-01,9.34903430873388896493e-02,1.38891998866618626706e-01,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'decode/ttft_ms/p95','t',13,-4.00802139753881833672e-03,-1.91828194167739697617e-02,1.0939940038334365624e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'decode/itl_ms/p95','t',13,0.0295588022415444,9.95033085316808334208e-03,4.87901641694320070685e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'memory/peak_bytes','deterministic',13,0.0,0.0,0.0,1.0);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',1,'compile/warmup_s','t',13,-2.02027073175194485377e-02,-9.4310679471241318228e-02,4.87901641694320070685e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c1','t',13,1.5700374880966475044e-01,1.38021297897374689567e-01,1.75632568643158015753e-01,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c2','t',13,4.01817896328318241438e-02,2.17614917815126922284e-02,5.82689081239757752928e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c4','t',13,9.99500333083533148634e-04,-6.01807232556301596043e-03,7.96816964917687435565e-03,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c8','t',13,1.16003675756306143251e-01,9.34903430873388896493e-02,1.38891998866618626706e-01,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'decode/ttft_ms/p95','t',13,-4.00802139753881833672e-03,-1.91828194167739697617e-02,1.0939940038334365624e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'decode/itl_ms/p95','t',13,0.0295588022415444,9.95033085316808334208e-03,4.87901641694320070685e-02,0.0056);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'memory/peak_bytes','deterministic',13,0.0,0.0,0.0,1.0);
INSERT INTO "effects" VALUES('20260301T090000Z-aaaa',2,'compile/warmup_s','t',13,-2.02027073175194485377e-02,-9.4310679471241318228e-02,4.87901641694320070685e-02,0.0056);
CREATE TABLE invalidations (
	run_id VARCHAR(64) NOT NULL, 
	reason TEXT NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	at VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_invalidations PRIMARY KEY (run_id), 
	CONSTRAINT fk_invalidations_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE TABLE mirrors (
	run_id VARCHAR(64) NOT NULL, 
	uri VARCHAR(512) NOT NULL, 
	digest VARCHAR(16) NOT NULL, 
	mlflow_run_id VARCHAR(64) NOT NULL, 
	attempts INTEGER NOT NULL, 
	last_error TEXT NOT NULL, 
	tried_at VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_mirrors PRIMARY KEY (run_id, uri), 
	CONSTRAINT fk_mirrors_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE TABLE overrides (
	number INTEGER NOT NULL, 
	scope_key VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	reason TEXT NOT NULL, 
	at VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_overrides PRIMARY KEY (number)
);
CREATE TABLE "runs" (
	run_id VARCHAR(64) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	lever VARCHAR(128) NOT NULL, 
	ref VARCHAR(64) NOT NULL, 
	cand VARCHAR(64) NOT NULL, 
	workload VARCHAR(128) NOT NULL, 
	scope_key VARCHAR(16) NOT NULL, 
	device_kind VARCHAR(128) NOT NULL, 
	outcome VARCHAR(16), 
	reason VARCHAR(32), 
	parity_class VARCHAR(16), 
	created_at VARCHAR(32) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	boot_id VARCHAR(64) NOT NULL, 
	place VARCHAR(255) NOT NULL, 
	versions JSON NOT NULL, 
	on_set JSON NOT NULL, 
	lever_digest VARCHAR(64) NOT NULL, 
	plan_digest VARCHAR(64) NOT NULL, 
	content_digest VARCHAR(16) NOT NULL, 
	schema_version INTEGER NOT NULL, 
	record TEXT NOT NULL, axis VARCHAR(128) DEFAULT '' NOT NULL, effect FLOAT, lower FLOAT, upper FLOAT, pairs INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_runs PRIMARY KEY (run_id)
);
INSERT INTO "runs" VALUES('20260301T090000Z-aaaa','decided','ab','fa2_nsplits_cap','off','auto','decode','07cac77e6cf334c7','x86_64 CPU','default-ON','failing-axis-win','lossless','2026-03-01T09:00:00+00:00','bench-1','8a6f1e3c','bench-1','{"torch": "2.13.0", "python": "3.11.9", "triton": "3.9.0"}','[]','a1b2c3d4e5f60718','5e6f708192a3b4c5','4ec8929f98f23ee3',1,'{"schema_version":1,"run_id":"20260301T090000Z-aaaa","status":"decided","spec":{"lever":"fa2_nsplits_cap","ref":"off","cand":"auto","workload":"decode","parameters":{"model":"tiny","model_digest":"3f9c1c0a77aa10d2","sms":48},"device":"cpu","seed":7,"looks":[6,9,13,18,25,40],"budget_s":null,"oracle":"sdpa","stack":[],"policy":{"primaries":["decode/tok_s/c*"],"guards":[{"axis":"decode/ttft_ms/p95","margin":0.03,"ceiling":null},{"axis":"decode/itl_ms/p95","margin":0.03,"ceiling":null},{"axis":"memory/peak_bytes","margin":0.01,"ceiling":null}],"claims":"lossless","demands":null,"smallest_gain":0.01,"primary_margin":0.01,"needs_win":false,"strict_tokens":false,"near_tie_share":0.01,"near_tie_gap_nat":0.5,"untargeted":"wanted","tolerance":null},"levers_source_digest":"a1b2c3d4e5f60718","sequential":"group-sequential"},"plan_digest":"5e6f708192a3b4c5","created_at":"2026-03-01T09:00:00+00:00","axes":[{"name":"decode/tok_s/c1","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c2","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c4","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c8","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/ttft_ms/p95","unit":"ms","higher_is_better":false,"deterministic":false},{"name":"decode/itl_ms/p95","unit":"ms","higher_is_better":false,"deterministic":false},{"name":"memory/peak_bytes","unit":"bytes","higher_is_better":false,"deterministic":true},{"name":"compile/warmup_s","unit":"s","higher_is_better":false,"deterministic":false}],"targets":[],"impossible":{},"capacities":{},"oracle_mode":"","environment":{"device_kind":"x86_64 CPU","device_uuid":"","device_type":"cpu","host":"bench-1","boot_id":"8a6f1e3c","versions":{"torch":"2.13.0","python":"3.11.9","triton":"3.9.0"},"commit":"0123456789abcdef0123456789abcdef01234567","dirty":false,"cpu_count":2,"memory_bytes":8589934592,"device_memory_bytes":0,"sm_count":0,"variables":{},"removed_variables":{},"facts":{}},"witnesses":[{"arm":"ref","plans":{"decode/tok_s/c1":"num_splits=7","decode/tok_s/c2":"num_splits=4","decode/tok_s/c4":"num_splits=3","decode/tok_s/c8":"num_splits=3"},"launches":{"decode_attention":128},"left_changed":[]},{"arm":"cand","plans":{"decode/tok_s/c1":"num_splits=6","decode/tok_s/c2":"num_splits=3","decode/tok_s/c4":"num_splits=3","decode/tok_s/c8":"num_splits=1"},"launches":{"decode_attention":128},"left_changed":[]}],"parity":{"checks":[{"name":"op","status":"passed","passed":114,"total":114,"worst":"error ratio 1.00","where":"D=128 GQA 4, 896 tokens, cancellation","detail":"","strongest":"lossless","fault":"","figures":{},"digest":"77aa","cached":false,"seconds":4.2},{"name":"determinism","status":"passed","passed":4,"total":4,"worst":"","where":"","detail":"","strongest":"byte-exact","fault":"","figures":{},"digest":"","cached":false,"seconds":3.1},{"name":"tokens","status":"passed","passed":16,"total":16,"worst":"near-tie gap 0.20 nat","where":"prompt 11, token 37","detail":"15/16 strict, 1 near-tie within 0.5 nat","strongest":"lossless","fault":"","figures":{},"digest":"","cached":false,"seconds":6.0},{"name":"memcheck","status":"not-run","passed":0,"total":0,"worst":"","where":"","detail":"memcheck needs CUDA and compute-sanitizer","strongest":"byte-exact","fault":"","figures":{},"digest":"","cached":false,"seconds":0.0},{"name":"rollback","status":"passed","passed":2,"total":2,"worst":"","where":"","detail":"","strongest":"byte-exact","fault":"","figures":{},"digest":"","cached":true,"seconds":0.0}],"claimed":"lossless"},"samples":[{"pair":0,"arm":"cand","position":0,"values":{"decode/tok_s/c1":284.5076832,"decode/tok_s/c2":476.2683264,"decode/tok_s/c4":807.0045983999998,"decode/tok_s/c8":1534.4456384000002,"decode/ttft_ms/p95":41.53253012048194,"decode/itl_ms/p95":4.72885436893204,"memory/peak_bytes":2801349469.1430397,"compile/warmup_s":3.4416326530612245},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:00:00+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":0,"arm":"ref","position":1,"values":{"decode/tok_s/c1":243.16896,"decode/tok_s/c2":457.5104,"decode/tok_s/c4":806.1984,"decode/tok_s/c8":1366.3808000000001,"decode/ttft_ms/p95":41.366400000000006,"decode/itl_ms/p95":4.87072,"memory/peak_bytes":2801349469.1430397,"compile/warmup_s":3.3728},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:00:30+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":1,"arm":"ref","position":0,"values":{"decode/tok_s/c1":244.14947999999998,"decode/tok_s/c2":459.35519999999997,"decode/tok_s/c4":809.4492,"decode/tok_s/c8":1371.8904,"decode/ttft_ms/p95":41.5332,"decode/itl_ms/p95":4.89036,"memory/peak_bytes":2812645233.13152,"compile/warmup_s":3.3864},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:01:00+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":1,"arm":"cand","position":1,"values":{"decode/tok_s/c1":285.6548916,"decode/tok_s/c2":478.1887631999999,"decode/tok_s/c4":810.2586491999999,"decode/tok_s/c8":1540.6329192,"decode/ttft_ms/p95":41.7,"decode/itl_ms/p95":4.747922330097087,"memory/peak_bytes":2812645233.13152,"compile/warmup_s":3.455510204081633},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:01:30+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":2,"arm":"cand","position":0,"values":{"decode/tok_s/c1":286.8021,"decode/tok_s/c2":480.10919999999993,"decode/tok_s/c4":813.5127,"decode/tok_s/c8":1546.8202,"decode/ttft_ms/p95":41.867469879518076,"decode/itl_ms/p95":4.766990291262136,"memory/peak_bytes":2823940997.12,"compile/warmup_s":3.4693877551020407},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:02:00+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":2,"arm":"ref","position":1,"values":{"decode/tok_s/c1":245.13,"decode/tok_s/c2":461.2,"decode/tok_s/c4":812.7,"decode/tok_s/c8":1377.4,"decode/ttft_ms/p95":41.7,"decode/itl_ms/p95":4.91,"memory/peak_bytes":2823940997.12,"compile/warmup_s":3.4},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:02:30+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":3,"arm":"ref","position":0,"values":{"decode/tok_s/c1":246.11052,"decode/tok_s/c2":463.0448,"decode/tok_s/c4":815.9508000000001,"decode/tok_s/c8":1382.9096000000002,"decode/ttft_ms/p95":41.866800000000005,"decode/itl_ms/p95":4.92964,"memory/peak_bytes":2835236761.10848,"compile/warmup_s":3.4135999999999997},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:03:00+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":3,"arm":"cand","position":1,"values":{"decode/tok_s/c1":287.9493084,"decode/tok_s/c2":482.0296368,"decode/tok_s/c4":816.7667508,"decode/tok_s/c8":1553.0074808000002,"decode/ttft_ms/p95":42.03493975903615,"decode/itl_ms/p95":4.786058252427185,"memory/peak_bytes":2835236761.10848,"compile/warmup_s":3.483265306122449},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:03:30+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}}],"lost":[{"pair":4,"arm":"cand","cause":"foreign process 4242"}],"failures":[],"faults":[],"looks":[{"index":0,"pairs":6,"effects":[{"axis":"decode/tok_s/c1","kind":"t","units":13,"estimate":0.15700374880966475,"lower":0.1380212978973747,"upper":0.17563256864315802,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c2","kind":"t","units":13,"estimate":0.040181789632831824,"lower":0.021761491781512692,"upper":0.058268908123975775,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c4","kind":"t","units":13,"estimate":0.0009995003330835331,"lower":-0.006018072325563016,"upper":0.007968169649176874,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c8","kind":"t","units":13,"estimate":0.11600367575630614,"lower":0.09349034308733889,"upper":0.13889199886661863,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/ttft_ms/p95","kind":"t","units":13,"estimate":-0.004008021397538818,"lower":-0.01918281941677397,"upper":0.010939940038334366,"sd":0.026000000000000002,"nominal_p":0.0056,"stderr":0.00721110255092798,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/itl_ms/p95","kind":"t","units":13,"estimate":0.0295588022415444,"lower":0.009950330853168083,"upper":0.04879016416943201,"sd":0.028999999999999998,"nominal_p":0.0056,"stderr":0.008043152845265822,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"memory/peak_bytes","kind":"deterministic","units":13,"estimate":0.0,"lower":0.0,"upper":0.0,"sd":0.0,"nominal_p":1.0,"stderr":0.0,"dof":0,"autocorrelation":null,"unit_pairs":1},{"axis":"compile/warmup_s","kind":"t","units":13,"estimate":-0.02020270731751945,"lower":-0.09431067947124132,"upper":0.04879016416943201,"sd":0.09,"nominal_p":0.0056,"stderr":0.02496150883013531,"dof":11,"autocorrelation":null,"unit_pairs":1}],"states":[],"lost":[],"last":false},{"index":1,"pairs":9,"effects":[{"axis":"decode/tok_s/c1","kind":"t","units":13,"estimate":0.15700374880966475,"lower":0.1380212978973747,"upper":0.17563256864315802,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c2","kind":"t","units":13,"estimate":0.040181789632831824,"lower":0.021761491781512692,"upper":0.058268908123975775,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c4","kind":"t","units":13,"estimate":0.0009995003330835331,"lower":-0.006018072325563016,"upper":0.007968169649176874,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c8","kind":"t","units":13,"estimate":0.11600367575630614,"lower":0.09349034308733889,"upper":0.13889199886661863,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/ttft_ms/p95","kind":"t","units":13,"estimate":-0.004008021397538818,"lower":-0.01918281941677397,"upper":0.010939940038334366,"sd":0.026000000000000002,"nominal_p":0.0056,"stderr":0.00721110255092798,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/itl_ms/p95","kind":"t","units":13,"estimate":0.0295588022415444,"lower":0.009950330853168083,"upper":0.04879016416943201,"sd":0.028999999999999998,"nominal_p":0.0056,"stderr":0.008043152845265822,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"memory/peak_bytes","kind":"deterministic","units":13,"estimate":0.0,"lower":0.0,"upper":0.0,"sd":0.0,"nominal_p":1.0,"stderr":0.0,"dof":0,"autocorrelation":null,"unit_pairs":1},{"axis":"compile/warmup_s","kind":"t","units":13,"estimate":-0.02020270731751945,"lower":-0.09431067947124132,"upper":0.04879016416943201,"sd":0.09,"nominal_p":0.0056,"stderr":0.02496150883013531,"dof":11,"autocorrelation":null,"unit_pairs":1}],"states":[],"lost":[],"last":false},{"index":2,"pairs":13,"effects":[{"axis":"decode/tok_s/c1","kind":"t","units":13,"estimate":0.15700374880966475,"lower":0.1380212978973747,"upper":0.17563256864315802,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c2","kind":"t","units":13,"estimate":0.040181789632831824,"lower":0.021761491781512692,"upper":0.058268908123975775,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c4","kind":"t","units":13,"estimate":0.0009995003330835331,"lower":-0.006018072325563016,"upper":0.007968169649176874,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/tok_s/c8","kind":"t","units":13,"estimate":0.11600367575630614,"lower":0.09349034308733889,"upper":0.13889199886661863,"sd":0.018000000000000002,"nominal_p":0.0056,"stderr":0.004992301766027063,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/ttft_ms/p95","kind":"t","units":13,"estimate":-0.004008021397538818,"lower":-0.01918281941677397,"upper":0.010939940038334366,"sd":0.026000000000000002,"nominal_p":0.0056,"stderr":0.00721110255092798,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"decode/itl_ms/p95","kind":"t","units":13,"estimate":0.0295588022415444,"lower":0.009950330853168083,"upper":0.04879016416943201,"sd":0.028999999999999998,"nominal_p":0.0056,"stderr":0.008043152845265822,"dof":11,"autocorrelation":null,"unit_pairs":1},{"axis":"memory/peak_bytes","kind":"deterministic","units":13,"estimate":0.0,"lower":0.0,"upper":0.0,"sd":0.0,"nominal_p":1.0,"stderr":0.0,"dof":0,"autocorrelation":null,"unit_pairs":1},{"axis":"compile/warmup_s","kind":"t","units":13,"estimate":-0.02020270731751945,"lower":-0.09431067947124132,"upper":0.04879016416943201,"sd":0.09,"nominal_p":0.0056,"stderr":0.02496150883013531,"dof":11,"autocorrelation":null,"unit_pairs":1}],"states":[{"axis":"decode/tok_s/c1","state":"passing","target":">= 1.00 x sdpa","ratio":1.02,"lower":1.011,"upper":1.03,"runs":4,"oracle":"sdpa","oracle_mode":"eager-sdpa","missing":""},{"axis":"decode/tok_s/c2","state":"failing","target":">= 1.00 x sdpa","ratio":0.969,"lower":0.958,"upper":0.98,"runs":4,"oracle":"sdpa","oracle_mode":"eager-sdpa","missing":""},{"axis":"decode/tok_s/c4","state":"undecided","target":">= 1.00 x sdpa","ratio":0.996,"lower":0.981,"upper":1.011,"runs":4,"oracle":"sdpa","oracle_mode":"eager-sdpa","missing":""},{"axis":"decode/tok_s/c8","state":"failing","target":">= 1.00 x sdpa","ratio":0.962,"lower":0.951,"upper":0.973,"runs":4,"oracle":"sdpa","oracle_mode":"eager-sdpa","missing":""}],"lost":[],"last":false}],"decision":{"outcome":"default-ON","reason":"failing-axis-win","axes":["decode/tok_s/c8"],"detail":"","undecided":[],"smallest_visible":0.019,"pairs_needed":null,"minutes_needed":null,"notes":["tokens: 1 of 16 streams differs at a near-tie of 0.20 nat"]},"timing":{"total_s":152.0,"parity_s":21.0,"arms_start_s":9.0,"arms_warmup_s":25.0,"arms_measured_s":84.0,"forkserver_s":6.0},"warnings":[],"kind":"ab"}','decode/tok_s/c8',1.16003675756306143251e-01,9.34903430873388896493e-02,1.38891998866618626706e-01,13);
INSERT INTO "runs" VALUES('20260302T090000Z-bbbb','decided','ab','fa2_nsplits_cap','off','3','decode','d6259a0326e1a7b0','x86_64 CPU','gated-OFF','parity-failed','broken','2026-03-02T09:00:00+00:00','bench-1','8a6f1e3c','bench-1','{"torch": "2.13.0", "python": "3.11.9", "triton": "3.9.0"}','[]','a1b2c3d4e5f60718','5e6f708192a3b4c5','2b6357acd9262678',1,'{"schema_version":1,"run_id":"20260302T090000Z-bbbb","status":"decided","spec":{"lever":"fa2_nsplits_cap","ref":"off","cand":"3","workload":"decode","parameters":{"model":"tiny","model_digest":"3f9c1c0a77aa10d2","sms":48},"device":"cpu","seed":7,"looks":[6,9,13,18,25,40],"budget_s":null,"oracle":"sdpa","stack":[],"policy":{"primaries":["decode/tok_s/c*"],"guards":[{"axis":"decode/ttft_ms/p95","margin":0.03,"ceiling":null},{"axis":"decode/itl_ms/p95","margin":0.03,"ceiling":null},{"axis":"memory/peak_bytes","margin":0.01,"ceiling":null}],"claims":"lossless","demands":null,"smallest_gain":0.01,"primary_margin":0.01,"needs_win":false,"strict_tokens":false,"near_tie_share":0.01,"near_tie_gap_nat":0.5,"untargeted":"wanted","tolerance":null},"levers_source_digest":"a1b2c3d4e5f60718","sequential":"group-sequential"},"plan_digest":"5e6f708192a3b4c5","created_at":"2026-03-02T09:00:00+00:00","axes":[{"name":"decode/tok_s/c1","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c2","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c4","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c8","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/ttft_ms/p95","unit":"ms","higher_is_better":false,"deterministic":false},{"name":"decode/itl_ms/p95","unit":"ms","higher_is_better":false,"deterministic":false},{"name":"memory/peak_bytes","unit":"bytes","higher_is_better":false,"deterministic":true},{"name":"compile/warmup_s","unit":"s","higher_is_better":false,"deterministic":false}],"targets":[],"impossible":{},"capacities":{},"oracle_mode":"","environment":{"device_kind":"x86_64 CPU","device_uuid":"","device_type":"cpu","host":"bench-1","boot_id":"8a6f1e3c","versions":{"torch":"2.13.0","python":"3.11.9","triton":"3.9.0"},"commit":"0123456789abcdef0123456789abcdef01234567","dirty":false,"cpu_count":2,"memory_bytes":8589934592,"device_memory_bytes":0,"sm_count":0,"variables":{},"removed_variables":{},"facts":{}},"witnesses":[{"arm":"ref","plans":{"decode/tok_s/c1":"num_splits=7","decode/tok_s/c2":"num_splits=4","decode/tok_s/c4":"num_splits=3","decode/tok_s/c8":"num_splits=3"},"launches":{"decode_attention":128},"left_changed":[]},{"arm":"cand","plans":{"decode/tok_s/c1":"num_splits=6","decode/tok_s/c2":"num_splits=3","decode/tok_s/c4":"num_splits=3","decode/tok_s/c8":"num_splits=1"},"launches":{"decode_attention":128},"left_changed":[]}],"parity":{"checks":[{"name":"op","status":"failed","passed":111,"total":114,"worst":"error ratio 3.02 (norm), 4.10 (99th-percentile row)","where":"D=64 GQA 4 | 1 token, large means","detail":"","strongest":"broken","fault":"","figures":{},"digest":"","cached":false,"seconds":4.4}],"claimed":"lossless"},"samples":[],"lost":[],"failures":[],"faults":[],"looks":[],"decision":{"outcome":"gated-OFF","reason":"parity-failed","axes":[],"detail":"op: 111 of 114 cases hold.","undecided":[],"smallest_visible":null,"pairs_needed":null,"minutes_needed":null,"notes":[]},"timing":{"total_s":152.0,"parity_s":21.0,"arms_start_s":9.0,"arms_warmup_s":25.0,"arms_measured_s":84.0,"forkserver_s":6.0},"warnings":[],"kind":"ab"}','',NULL,NULL,NULL,0);
INSERT INTO "runs" VALUES('20260303T090000Z-cccc','interrupted','ab','fa2_nsplits_cap','off','auto','decode','07cac77e6cf334c7','x86_64 CPU',NULL,NULL,'lossless','2026-03-03T09:00:00+00:00','bench-1','8a6f1e3c','bench-1','{"torch": "2.13.0", "python": "3.11.9", "triton": "3.9.0"}','[]','a1b2c3d4e5f60718','5e6f708192a3b4c5','b96221a0e6e906fb',1,'{"schema_version":1,"run_id":"20260303T090000Z-cccc","status":"interrupted","spec":{"lever":"fa2_nsplits_cap","ref":"off","cand":"auto","workload":"decode","parameters":{"model":"tiny","model_digest":"3f9c1c0a77aa10d2","sms":48},"device":"cpu","seed":7,"looks":[6,9,13,18,25,40],"budget_s":null,"oracle":"sdpa","stack":[],"policy":{"primaries":["decode/tok_s/c*"],"guards":[{"axis":"decode/ttft_ms/p95","margin":0.03,"ceiling":null},{"axis":"decode/itl_ms/p95","margin":0.03,"ceiling":null},{"axis":"memory/peak_bytes","margin":0.01,"ceiling":null}],"claims":"lossless","demands":null,"smallest_gain":0.01,"primary_margin":0.01,"needs_win":false,"strict_tokens":false,"near_tie_share":0.01,"near_tie_gap_nat":0.5,"untargeted":"wanted","tolerance":null},"levers_source_digest":"a1b2c3d4e5f60718","sequential":"group-sequential"},"plan_digest":"5e6f708192a3b4c5","created_at":"2026-03-03T09:00:00+00:00","axes":[{"name":"decode/tok_s/c1","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c2","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c4","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/tok_s/c8","unit":"tok/s","higher_is_better":true,"deterministic":false},{"name":"decode/ttft_ms/p95","unit":"ms","higher_is_better":false,"deterministic":false},{"name":"decode/itl_ms/p95","unit":"ms","higher_is_better":false,"deterministic":false},{"name":"memory/peak_bytes","unit":"bytes","higher_is_better":false,"deterministic":true},{"name":"compile/warmup_s","unit":"s","higher_is_better":false,"deterministic":false}],"targets":[],"impossible":{},"capacities":{},"oracle_mode":"","environment":{"device_kind":"x86_64 CPU","device_uuid":"","device_type":"cpu","host":"bench-1","boot_id":"8a6f1e3c","versions":{"torch":"2.13.0","python":"3.11.9","triton":"3.9.0"},"commit":"0123456789abcdef0123456789abcdef01234567","dirty":false,"cpu_count":2,"memory_bytes":8589934592,"device_memory_bytes":0,"sm_count":0,"variables":{},"removed_variables":{},"facts":{}},"witnesses":[{"arm":"ref","plans":{"decode/tok_s/c1":"num_splits=7","decode/tok_s/c2":"num_splits=4","decode/tok_s/c4":"num_splits=3","decode/tok_s/c8":"num_splits=3"},"launches":{"decode_attention":128},"left_changed":[]},{"arm":"cand","plans":{"decode/tok_s/c1":"num_splits=6","decode/tok_s/c2":"num_splits=3","decode/tok_s/c4":"num_splits=3","decode/tok_s/c8":"num_splits=1"},"launches":{"decode_attention":128},"left_changed":[]}],"parity":{"checks":[{"name":"op","status":"passed","passed":114,"total":114,"worst":"error ratio 1.00","where":"D=128 GQA 4, 896 tokens, cancellation","detail":"","strongest":"lossless","fault":"","figures":{},"digest":"77aa","cached":false,"seconds":4.2},{"name":"determinism","status":"passed","passed":4,"total":4,"worst":"","where":"","detail":"","strongest":"byte-exact","fault":"","figures":{},"digest":"","cached":false,"seconds":3.1},{"name":"tokens","status":"passed","passed":16,"total":16,"worst":"near-tie gap 0.20 nat","where":"prompt 11, token 37","detail":"15/16 strict, 1 near-tie within 0.5 nat","strongest":"lossless","fault":"","figures":{},"digest":"","cached":false,"seconds":6.0},{"name":"memcheck","status":"not-run","passed":0,"total":0,"worst":"","where":"","detail":"memcheck needs CUDA and compute-sanitizer","strongest":"byte-exact","fault":"","figures":{},"digest":"","cached":false,"seconds":0.0},{"name":"rollback","status":"passed","passed":2,"total":2,"worst":"","where":"","detail":"","strongest":"byte-exact","fault":"","figures":{},"digest":"","cached":true,"seconds":0.0}],"claimed":"lossless"},"samples":[{"pair":0,"arm":"cand","position":0,"values":{"decode/tok_s/c1":284.5076832,"decode/tok_s/c2":476.2683264,"decode/tok_s/c4":807.0045983999998,"decode/tok_s/c8":1534.4456384000002,"decode/ttft_ms/p95":41.53253012048194,"decode/itl_ms/p95":4.72885436893204,"memory/peak_bytes":2801349469.1430397,"compile/warmup_s":3.4416326530612245},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:00:00+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}},{"pair":0,"arm":"ref","position":1,"values":{"decode/tok_s/c1":243.16896,"decode/tok_s/c2":457.5104,"decode/tok_s/c4":806.1984,"decode/tok_s/c8":1366.3808000000001,"decode/ttft_ms/p95":41.366400000000006,"decode/itl_ms/p95":4.87072,"memory/peak_bytes":2801349469.1430397,"compile/warmup_s":3.3728},"raw":{},"start_s":0.4,"warmup_s":0.9,"measured_s":2.0,"wall_s":3.4,"started_at":"2026-03-04T10:00:30+00:00","inputs_digest":"cafe0123cafe0123","outputs_count":256,"compilations":0,"telemetry":{}}],"lost":[],"failures":[],"faults":[],"looks":[],"decision":null,"timing":null,"warnings":[],"kind":"ab"}','',NULL,NULL,NULL,0);
CREATE TABLE samples (
	run_id VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	axis VARCHAR(128) NOT NULL, 
	pair INTEGER NOT NULL, 
	arm VARCHAR(16) NOT NULL, 
	position INTEGER NOT NULL, 
	value FLOAT, 
	CONSTRAINT pk_samples PRIMARY KEY (run_id, number, axis), 
	CONSTRAINT fk_samples_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c1',0,'cand',0,284.5076832);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c2',0,'cand',0,476.2683264);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c4',0,'cand',0,8.0700459839999984981e+02);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'decode/tok_s/c8',0,'cand',0,1.53444563840000023444e+03);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'decode/ttft_ms/p95',0,'cand',0,4.15325301204819368177e+01);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'decode/itl_ms/p95',0,'cand',0,4.72885436893204);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'memory/peak_bytes',0,'cand',0,2.80134946914303970336e+09);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',0,'compile/warmup_s',0,'cand',0,3.44163265306122445608e+00);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c1',0,'ref',1,243.16896);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c2',0,'ref',1,457.5104);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c4',0,'ref',1,806.1984);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'decode/tok_s/c8',0,'ref',1,1.3663808000000001357e+03);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'decode/ttft_ms/p95',0,'ref',1,4.13664000000000058304e+01);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'decode/itl_ms/p95',0,'ref',1,4.87072);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'memory/peak_bytes',0,'ref',1,2.80134946914303970336e+09);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',1,'compile/warmup_s',0,'ref',1,3.3728);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c1',1,'ref',0,2.44149479999999982735e+02);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c2',1,'ref',0,4.59355199999999967968e+02);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c4',1,'ref',0,809.4492);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'decode/tok_s/c8',1,'ref',0,1371.8904);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'decode/ttft_ms/p95',1,'ref',0,41.5332);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'decode/itl_ms/p95',1,'ref',0,4.89036);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'memory/peak_bytes',1,'ref',0,2812645233.13152);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',2,'compile/warmup_s',1,'ref',0,3.3864);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'decode/tok_s/c1',1,'cand',1,285.6548916);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'decode/tok_s/c2',1,'cand',1,4.78188763199999925749e+02);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'decode/tok_s/c4',1,'cand',1,8.10258649199999922505e+02);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'decode/tok_s/c8',1,'cand',1,1540.6329192);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'decode/ttft_ms/p95',1,'cand',1,41.7);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'decode/itl_ms/p95',1,'cand',1,4.74792233009708741775e+00);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'memory/peak_bytes',1,'cand',1,2812645233.13152);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',3,'compile/warmup_s',1,'cand',1,3.45551020408163278574e+00);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'decode/tok_s/c1',2,'cand',0,286.8021);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'decode/tok_s/c2',2,'cand',0,4.80109199999999930246e+02);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'decode/tok_s/c4',2,'cand',0,813.5127);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'decode/tok_s/c8',2,'cand',0,1546.8202);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'decode/ttft_ms/p95',2,'cand',0,4.18674698795180759685e+01);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'decode/itl_ms/p95',2,'cand',0,4.7669902912621360258e+00);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'memory/peak_bytes',2,'cand',0,2823940997.12);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',4,'compile/warmup_s',2,'cand',0,3.46938775510204067131e+00);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'decode/tok_s/c1',2,'ref',1,245.13);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'decode/tok_s/c2',2,'ref',1,461.2);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'decode/tok_s/c4',2,'ref',1,812.7);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'decode/tok_s/c8',2,'ref',1,1377.4);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'decode/ttft_ms/p95',2,'ref',1,41.7);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'decode/itl_ms/p95',2,'ref',1,4.91);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'memory/peak_bytes',2,'ref',1,2823940997.12);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',5,'compile/warmup_s',2,'ref',1,3.4);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'decode/tok_s/c1',3,'ref',0,246.11052);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'decode/tok_s/c2',3,'ref',0,463.0448);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'decode/tok_s/c4',3,'ref',0,8.15950800000000072038e+02);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'decode/tok_s/c8',3,'ref',0,1.38290960000000018228e+03);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'decode/ttft_ms/p95',3,'ref',0,4.18668000000000049007e+01);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'decode/itl_ms/p95',3,'ref',0,4.92964);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'memory/peak_bytes',3,'ref',0,2835236761.10848);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',6,'compile/warmup_s',3,'ref',0,3.41359999999999974562e+00);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'decode/tok_s/c1',3,'cand',1,287.9493084);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'decode/tok_s/c2',3,'cand',1,482.0296368);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'decode/tok_s/c4',3,'cand',1,816.7667508);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'decode/tok_s/c8',3,'cand',1,1.55300748080000016676e+03);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'decode/ttft_ms/p95',3,'cand',1,4.20349397590361491001e+01);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'decode/itl_ms/p95',3,'cand',1,4.78605825242718463385e+00);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'memory/peak_bytes',3,'cand',1,2835236761.10848);
INSERT INTO "samples" VALUES('20260301T090000Z-aaaa',7,'compile/warmup_s',3,'cand',1,3.48326530612244900098e+00);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'decode/tok_s/c1',0,'cand',0,284.5076832);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'decode/tok_s/c2',0,'cand',0,476.2683264);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'decode/tok_s/c4',0,'cand',0,8.0700459839999984981e+02);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'decode/tok_s/c8',0,'cand',0,1.53444563840000023444e+03);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'decode/ttft_ms/p95',0,'cand',0,4.15325301204819368177e+01);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'decode/itl_ms/p95',0,'cand',0,4.72885436893204);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'memory/peak_bytes',0,'cand',0,2.80134946914303970336e+09);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',0,'compile/warmup_s',0,'cand',0,3.44163265306122445608e+00);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'decode/tok_s/c1',0,'ref',1,243.16896);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'decode/tok_s/c2',0,'ref',1,457.5104);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'decode/tok_s/c4',0,'ref',1,806.1984);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'decode/tok_s/c8',0,'ref',1,1.3663808000000001357e+03);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'decode/ttft_ms/p95',0,'ref',1,4.13664000000000058304e+01);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'decode/itl_ms/p95',0,'ref',1,4.87072);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'memory/peak_bytes',0,'ref',1,2.80134946914303970336e+09);
INSERT INTO "samples" VALUES('20260303T090000Z-cccc',1,'compile/warmup_s',0,'ref',1,3.3728);
CREATE INDEX ix_default_states_lever ON default_states (lever);
CREATE INDEX ix_runs_lever_created_at ON runs (lever, created_at);
CREATE INDEX ix_runs_scope_key ON runs (scope_key);
CREATE INDEX ix_overrides_scope_key ON overrides (scope_key);
CREATE INDEX ix_calibrations_place_key_created_at ON calibrations (place_key, created_at);
COMMIT;
