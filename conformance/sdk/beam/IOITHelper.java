package org.apache.beam.sdk.io.common;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.beam.sdk.options.PipelineOptions;
import org.apache.beam.sdk.options.PipelineOptionsFactory;

/** What Beam's tests need of a module that is not published: options from a system property. */
public class IOITHelper {
  public static <T extends PipelineOptions> T readIOTestPipelineOptions(Class<T> type) throws Exception {
    PipelineOptionsFactory.register(type);
    String[] args = new ObjectMapper().readValue(System.getProperty("beamTestPipelineOptions", "[]"), String[].class);
    return PipelineOptionsFactory.fromArgs(args).as(type);
  }
}
